"""1F1B over `stage`, ring attention in a zigzag over `context` inside each stage, data parallelism over `data`.

Use it for long rows of a model that does not fit: `context` inside a node, where keys and values go round beside the
compute, `stage` across nodes. All stages go from tick to tick together, so that every ring turns on all of them.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=2, context=2),
            rules=dict(batch="data", length="context", layers="stage"),
            activations=dict(stream="context"),
            attention="ring",
            order="zigzag",
            pipeline=dict(schedule="1f1b", microbatches=4),
        )
    )
