"""ZeRO-3 over all nodes, Megatron tensor and sequence parallelism over the 8 GPUs of each node, full rematerialisation.

Use it for 7e10 to 4e11 parameters on hundreds to thousands of GPUs where pipeline stages are not wanted: a batch of one
sequence per node is enough, and what crosses nodes are weights and gradients, which hide behind the compute.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, tensor=8),
            rules=dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream="tensor"),
            params=dict(embed="data"),
            remat="full",
        )
    )
