"""Bytes of the training state on one device: weights that compute, gradients, float32 masters and moments.

Counted from the very specs and placement that training uses; and once more in closed form, from bytes per parameter
alone, as the ZeRO paper counts (Rajbhandari et al. 2020): a test holds one against the other.
"""

import math
from dataclasses import dataclass
from functools import cache

from meshtrain.layout import Placement, named_specs
from meshtrain.layout.inventory import WEIGHT_KINDS, Named, local_bytes
from meshtrain.layout.roles import ZERO
from meshtrain.model import ModelConfig, describe
from meshtrain.model.flops import count_parameters
from meshtrain.step import StepConfig, state_specs
from meshtrain.step.optimizer import OptimizerConfig
from meshtrain.step.precision import Precision


@dataclass(frozen=True)
class Weights:
    """(path, spec) of every array of the state, in logical shapes.

    params: the copy that computes. grads: as they are summed. optimizer: masters, moments and counters.
    """

    params: Named
    grads: Named
    optimizer: Named

    def bytes_of(self, kind: str, place: Placement) -> int:
        """Bytes of a class on one device, padding included."""
        return sum(local_bytes(place, kind, spec) for _, spec in getattr(self, kind))


def weights_of(config: StepConfig, accumulate: int = 1) -> Weights:
    """The arrays of the state. Microbatches are summed in float32, a single one in the compute dtype."""
    return _weights(config.model, config.optimizer, config.precision, accumulate > 1)


@cache
def _weights(model: ModelConfig, optimizer: OptimizerConfig, precision: Precision, sums: bool) -> Weights:
    specs = state_specs(model, optimizer)
    compute = precision.compute_specs(specs.params)
    masters = [("params/" + path, spec) for path, spec in named_specs(specs.params)]
    moments = [("moments/" + path, spec) for path, spec in named_specs(specs.opt_state)]
    return Weights(
        tuple(named_specs(compute)), tuple(named_specs(specs.params if sums else compute)), (*masters, *moments)
    )


def state_bytes(config: StepConfig, place: Placement) -> dict[str, int]:
    """Class -> bytes on one device. Errors as in `Placement.spec`."""
    weights = weights_of(config, place.layout.accumulate)
    return {kind: weights.bytes_of(kind, place) for kind in WEIGHT_KINDS}


def count_expert_parameters(model: ModelConfig) -> int:
    """How many of the parameters are those of experts, of which a token meets a few; 0 without any."""
    return sum(math.prod(spec.shape) for _, spec in named_specs(describe(model)) if "expert" in spec.dims)


@dataclass(frozen=True)
class PerParameter:
    """Bytes per parameter of each class."""

    params: float
    grads: float
    optimizer: float

    @property
    def total(self) -> float:
        """Bytes per parameter of all classes."""
        return self.params + self.grads + self.optimizer

    def state_bytes(self, num_parameters: float, stage: int, num_shards: int) -> float:
        """Bytes per device with the classes of a ZeRO stage (0 to 3) cut into `num_shards`: THEORY's table."""
        parts = {kind: num_shards if stage >= needed else 1 for kind, needed in ZERO.items()}
        return num_parameters * sum(getattr(self, kind) / parts[kind] for kind in WEIGHT_KINDS)


def per_parameter(config: StepConfig, accumulate: int = 1) -> PerParameter:
    """Bytes per parameter of this run's classes, from the dtypes of its arrays (counters and the like included)."""
    weights = weights_of(config, accumulate)
    number = count_parameters(config.model)
    return PerParameter(*(_num_bytes(getattr(weights, kind)) / number for kind in WEIGHT_KINDS))


def _num_bytes(arrays: Named) -> int:
    return sum(spec.num_bytes for _, spec in arrays)
