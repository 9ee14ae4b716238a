"""Context parallelism by a ring, rows cut in order: keys and values go round, beside the compute.

Use it where every layer has a sliding window: only the steps within the window are sent. With causal attention over
the whole row the last device has most of the work: `context_ring_zigzag` evens that out.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, context=4),
            rules=dict(batch="data", length="context"),
            activations=dict(stream="context"),
            attention="ring",
        )
    )
