"""The table that tensor parallelism is explained with: computing against exchange of a layer, on ideal machines.

Nothing here is calibrated: links without latency at their full rate, units at a rate that is given. The time of a real
step is time.py's. Formula: Shoeybi et al. 2019, with rings as in collective.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshtrain.cost.collective import wire_factor
from meshtrain.cost.products import layer_products
from meshtrain.cost.quantity import ByteRate, FlopRate
from meshtrain.model import ModelConfig


@dataclass(frozen=True)
class TensorRow:
    """One layer's forward pass over `parts` devices: seconds of its products and of its two all_reduces."""

    parts: int
    rate: ByteRate
    compute: float
    exchange: float

    @property
    def share(self) -> float:
        """Of the time, what is exchange."""
        return self.exchange / (self.compute + self.exchange)


def tensor_table(
    model: ModelConfig, tokens: int, cases: Sequence[tuple[int, ByteRate]], flops: FlopRate, itemsize: int = 2
) -> list[TensorRow]:
    """For each (parts, link one way) the forward pass of a layer over `tokens` positions, units at `flops` a device."""
    work = sum(product.flops for product in layer_products(model, {}, tokens))
    activation = tokens * model.embed * itemsize
    return [
        TensorRow(
            parts, rate, work / parts / flops.value, 2 * activation * wire_factor("all_reduce", parts) / rate.value
        )
        for parts, rate in cases
    ]
