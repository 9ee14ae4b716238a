"""1F1B over `stage`: one microbatch forward, one backward in turn; data parallelism over `data`.

Use it where a model does not fit and the links between devices are slow: only activations cross stages. Idle share
(stages - 1) / (microbatches + stages - 1); at most 2 stages - 1 saved inputs, however many microbatches.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=4),
            rules=dict(batch="data", layers="stage"),
            pipeline=dict(schedule="1f1b", microbatches=4),
        )
    )
