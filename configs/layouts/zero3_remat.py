"""ZeRO-3 in 16 microbatches, where the backward pass keeps matrix products and attention and redoes the cheap rest.

Use it when long sequences of a model of 1e9 to 1e10 parameters fill one node. With remat="names" the MLP is done again
too, with "full" whole layers (a third more compute, and a third gather of each weight): the less memory.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            params=dict(embed="data"),
            accumulate=16,
            remat="dots",
        )
    )
