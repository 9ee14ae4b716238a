"""ZeRO-3 (fully sharded data parallelism): weights, gradients and optimizer state are cut over `data`.

Use it when the weights themselves do not fit. Each layer's weights are gathered where they are used, forward and
backward: one and a half times the traffic of `ddp`, which hides behind the compute of large batches.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            params=dict(embed="data"),
        )
    )
