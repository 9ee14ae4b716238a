"""A zigzag ring over `context`, Megatron tensor and sequence parallelism over `tensor`, ZeRO-3 over all but `tensor`.

Use it for large models on long rows: `tensor` inside a node, `context` next to it. Weights are stored in parts over
`context` too, since devices of one row hold the same ones.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, context=2, tensor=2),
            rules=dict(batch="data", length="context", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream=("context", "tensor")),
            params=dict(embed=("data", "context")),
            attention="ring",
            order="zigzag",
        )
    )
