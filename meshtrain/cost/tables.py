"""The closed forms that a layout is explained with: tensor parallelism over links, traffic of ZeRO; machines are ideal.

Nothing here is calibrated: links without latency at their full rate, units at a rate that is given. The time of a real
step is time.py's. Formulas: Shoeybi et al. 2019 (tensor), Rajbhandari et al. 2020 (ZeRO), rings as in collective.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from meshtrain.cost.collective import wire_factor
from meshtrain.cost.products import layer_products
from meshtrain.cost.quantity import ByteRate, FlopRate
from meshtrain.model import ModelConfig

# Which collectives of all weights' bytes a step has: (forward and backward gathers, reduction of gradients).
DATA_COLLECTIVES = {
    0: ("all_reduce",),
    1: ("reduce_scatter", "all_gather"),
    2: ("reduce_scatter", "all_gather"),
    3: ("all_gather", "all_gather", "reduce_scatter"),
}


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


def data_traffic(zero_stage: int, num_bytes: float, parts: int) -> float:
    """Bytes that a device sends a step for weights and gradients of so many bytes: 2P, 2P, 2P, 3P times (N-1)/N."""
    return sum(num_bytes * wire_factor(kind, parts) for kind in DATA_COLLECTIVES[zero_stage])


def tensor_traffic(activation_bytes: float, parts: int, sequence: bool, keeps_gathered: bool = False) -> float:
    """Bytes that a device sends for one layer, forward and backward.

    Two all_reduces each way, or a gather and a scatter for each; with the stream cut, backward gathers the two saved
    inputs once more unless they are kept.
    """
    kinds = ["all_gather", "reduce_scatter"] * 4 if sequence else ["all_reduce"] * 4
    if sequence and not keeps_gathered:
        kinds += ["all_gather"] * 2
    return sum(activation_bytes * wire_factor(kind, parts) for kind in kinds)
