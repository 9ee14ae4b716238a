"""Experts over an axis of their own, `expert`; the batch over it and over `data`, ZeRO-1 over both.

Use it for a mixture of experts whose other weights fit on each device: keep `expert` inside a node, where its
all-to-alls are fast. Every group of `expert` devices holds all experts once.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, expert=4),
            rules=dict(batch=("data", "expert"), expert="expert"),
            optimizer=dict(embed=("data", "expert"), expert_embed="data"),
            experts=dict(dispatch="dropless"),
        )
    )
