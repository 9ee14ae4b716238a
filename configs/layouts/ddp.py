"""Data parallelism: each device has a full copy of the model and its own part of the batch.

Use it when weights, gradients and optimizer state (16 bytes a parameter) and the activations fit one device. One sum
of the gradients a step.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
        )
    )
