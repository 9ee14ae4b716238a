"""Hybrid sharding: ZeRO-3 inside a group of devices (`shard`), data parallelism between groups (`replica`).

Use it when the state fits a node or a few: the gathers of the weights stay on the fast links of a group and only one
sum of the gradients crosses groups.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(replica=-1, shard=4),
            rules=dict(batch=("replica", "shard")),
            params=dict(embed="shard"),
        )
    )
