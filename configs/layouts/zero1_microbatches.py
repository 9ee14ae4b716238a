"""ZeRO-1 with the batch in 8 microbatches, whose gradients are summed before one exchange a step.

Use it when the model fits a device but the activations of a large batch do not: memory of an eighth of the batch, and
the same traffic a step as `zero1`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch="data"),
            optimizer=dict(embed="data"),
            accumulate=8,
        )
    )
