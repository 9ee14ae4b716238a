"""1F1B over `stage`, Megatron tensor and sequence parallelism over `tensor`, ZeRO-1 over `data`.

Use it for models beyond one node: `tensor` inside a node, `stage` across nodes, `data` over all that is left. The
tables' optimizer state, which no stage axis cuts otherwise, is spread over the stages too.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2, tensor=2),
            rules=dict(batch="data", layers="stage", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream="tensor"),
            optimizer=dict(embed="data", vocab=("tensor", "stage")),
            pipeline=dict(schedule="1f1b", microbatches=4),
        )
    )
