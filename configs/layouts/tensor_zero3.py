"""ZeRO-3 over `data`, Megatron tensor and sequence parallelism over `tensor`.

Use it for models that need both: `tensor` inside a node, `data` over all nodes. The usual layout of 8e9 to 7e10
parameters.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, tensor=2),
            rules=dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream="tensor"),
            params=dict(embed="data"),
        )
    )
