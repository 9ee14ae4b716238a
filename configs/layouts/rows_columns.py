"""The two-dimensional layout of Mesh-TensorFlow, with its names: batch over `rows`, hidden dims over `columns`.

It is `tensor` under other names. Use it to see that names are free: nothing in the package knows an axis by its name.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(rows=-1, columns=2),
            rules=dict(batch="rows", heads="columns", kv_heads="columns", mlp="columns", vocab="columns"),
        )
    )
