"""Megatron tensor parallelism over `tensor`, data parallelism over `data`.

Use it when one layer is too large or too slow for one device. Two sums of activations a layer, forward and backward:
keep `tensor` inside a node's fast links.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, tensor=4),
            rules=dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
        )
    )
