"""Zero-bubble ZB-H1 over `stage`: weight gradients are work of their own, which no stage waits for.

Use it where idle time hurts and memory is left: in lock step a third of 1F1B's idle time is gone, and each stage keeps
what the weight gradients of up to `stages` microbatches need.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2),
            rules=dict(batch="data", layers="stage"),
            pipeline=dict(schedule="zb_h1", microbatches=4),
        )
    )
