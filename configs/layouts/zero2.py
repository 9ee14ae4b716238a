"""ZeRO-2: like ZeRO-1, and the gradients are cut over `data` too.

Use it when a full gradient does not fit beside the weights. With accumulate > 1 the gradients are scattered once a
microbatch.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            grads=dict(embed="data"),
        )
    )
