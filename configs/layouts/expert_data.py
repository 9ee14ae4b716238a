"""Experts folded on the data axis: no axis of their own, and every device has a part of the batch and of the experts.

Use it where the network between all devices is fast, or as `data` inside a node beside other axes: it stores each
expert once. ZeRO-3 for all other weights; the experts, which `data` cuts already, are no further cut.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data", expert="data"),
            params=dict(embed="data", expert_embed=None),
            experts=dict(dispatch="dropless"),
        )
    )
