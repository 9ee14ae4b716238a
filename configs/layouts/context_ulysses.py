"""Context parallelism by swapping heads for length (Ulysses): attention sees whole rows of a part of the heads.

Use it inside a node where the heads of a device divide by `context`: four all-to-alls a layer, of 1/context of the
activations each, and the kernel of whole rows.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, context=4),
            rules=dict(batch="data", length="context"),
            activations=dict(stream="context"),
            attention="ulysses",
        )
    )
