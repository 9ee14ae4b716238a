"""ZeRO-1: data parallelism with the float32 masters and the moments cut over `data`.

Use it when the optimizer state is what does not fit. The traffic is that of `ddp`: gradients are scattered and the
updated weights gathered.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            optimizer=dict(embed="data"),
        )
    )
