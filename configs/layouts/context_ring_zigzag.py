"""Context parallelism by a ring, rows cut in a zigzag: the same work on every device in every step.

Use it for rows that do not fit one device: memory falls with `context`, keys and values go round beside the compute,
and there is no limit by heads. The default for long rows.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, context=4),
            rules=dict(batch="data", length="context"),
            activations=dict(stream="context"),
            attention="ring",
            order="zigzag",
        )
    )
