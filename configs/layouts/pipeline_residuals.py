"""1F1B whose forward passes leave what their backward passes need; only norms and activations are computed again.

Use it where stages have memory to spare: without `keep` a stage saves a microbatch's input alone, and each backward
pass begins with the forward pass of its piece. `remat` says what of a layer is kept.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2),
            rules=dict(batch="data", layers="stage"),
            optimizer=dict(embed="data"),
            remat="dots",
            pipeline=dict(schedule="1f1b", microbatches=4, keep="residuals"),
        )
    )
