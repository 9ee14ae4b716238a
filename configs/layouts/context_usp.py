"""Context parallelism over two axes: heads are swapped for length over `swap`, keys go round over `ring`.

Use it where heads do not suffice for Ulysses alone: `swap`, the last axis of the rule, inside a node, `ring` across
nodes, where its longer steps hide the slower links.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, ring=2, swap=2),
            rules=dict(batch="data", length=("ring", "swap")),
            activations=dict(stream=("ring", "swap")),
            attention="usp",
            order="zigzag",
        )
    )
