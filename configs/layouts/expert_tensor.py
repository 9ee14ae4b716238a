"""Experts over `data` and `tensor` together, attention with Megatron tensor and sequence parallelism over `tensor`.

Use it where attention needs `tensor` and experts are many and narrow: whole experts on each device instead of slices of
them. Tokens go to their experts over `tensor`, inside a node, first, and then over `data`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    tensor = dict(heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
    return ConfigDict(
        dict(
            mesh=dict(data=-1, tensor=2),
            rules=dict(tensor, batch="data", expert=("data", "tensor"), expert_mlp=None),
            activations=dict(stream="tensor"),
            optimizer=dict(embed="data", expert_embed=None),
            experts=dict(dispatch="dropless"),
        )
    )
