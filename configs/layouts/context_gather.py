"""Context parallelism by collecting keys and values: each device has a part of every row and all keys of a layer.

Use it for long rows with few key heads, and with pipelines (Llama 3 did): one all-gather a layer, no ring to keep in
step. Memory for one layer's keys and values of whole rows, and the exchange does not run beside the compute.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, context=4),
            rules=dict(batch="data", length="context"),
            activations=dict(stream="context"),
            attention="gather",
            order="zigzag",
        )
    )
