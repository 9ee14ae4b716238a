"""GPipe over `stage`: all microbatches forward, then all of them backward; data parallelism over `data`.

Use it to compare: the same idle time as 1F1B, but a saved input for every microbatch.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2),
            rules=dict(batch="data", layers="stage"),
            pipeline=dict(schedule="gpipe", microbatches=4),
        )
    )
