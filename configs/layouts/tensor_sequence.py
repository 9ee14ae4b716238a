"""Tensor parallelism with Megatron's sequence parallelism: the residual stream is cut along its length too.

Use it with `tensor` always when activations count: norms and residuals take 1/tensor of the memory, for the same
traffic (each sum becomes a scatter and a gather).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, tensor=4),
            rules=dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream="tensor"),
        )
    )
