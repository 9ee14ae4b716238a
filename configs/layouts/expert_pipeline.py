"""1F1B over `stage`, and in each stage experts over the axis `expert`; the batch over it and over `data`, ZeRO-1.

Use it for mixtures of experts that fit no node: activations cross slow links once a stage, all-to-alls stay inside. The
experts have a fixed capacity, a quarter above an even load of each row.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(stage=2, data=-1, expert=2),
            rules=dict(batch=("data", "expert"), expert="expert", layers="stage"),
            optimizer=dict(embed=("data", "expert"), expert_embed="data"),
            pipeline=dict(schedule="1f1b", microbatches=4),
            experts=dict(dispatch="capacity", capacity_factor=1.25),
        )
    )
