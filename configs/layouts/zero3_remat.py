"""ZeRO-3 with full rematerialisation and the batch in 16 microbatches.

Use it when long sequences of a model of 1e9 to 1e10 parameters fill one node: a device keeps one input per layer and
one microbatch at a time. It costs a third more compute and gathers each weight three times a microbatch.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            params=dict(embed="data"),
            accumulate=16,
            remat="full",
        )
    )
