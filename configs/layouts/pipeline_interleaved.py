"""Interleaved 1F1B over `stage`: each stage holds `repeats` pieces of the model; data parallelism over `data`.

Use it where the idle time of 1F1B hurts, with few microbatches: it falls by the factor `repeats`, while as many times
more activations cross stages. The number of microbatches should be at least that of stages.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2),
            rules=dict(batch="data", layers="stage"),
            pipeline=dict(schedule="interleaved", microbatches=4, repeats=2),
        )
    )
