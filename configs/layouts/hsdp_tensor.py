"""Data parallelism x ZeRO-3 x Megatron tensor parallelism, on three axes.

Use it when one node holds the state: `shard` and `tensor` fill the node, `replica` counts nodes, and only one sum of
the gradients crosses them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(replica=-1, shard=2, tensor=2),
            rules=dict(batch=("replica", "shard"), heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            params=dict(embed="shard"),
        )
    )
