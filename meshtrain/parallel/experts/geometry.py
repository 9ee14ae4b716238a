"""Sizes and coordinates around one exchange, all of them static: which device of each axis holds which expert."""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import Placement
from meshtrain.parallel.experts.axes import ExpertAxes


@dataclass(frozen=True)
class Geometry:
    """axes: the part of each axis. sizes: their sizes. num_experts, top_k: the model's. num_tokens: of one device.
    slots: what each expert takes at most of one device's tokens (capacity), or None (dropless). gpu: the platform."""

    axes: ExpertAxes
    sizes: dict[str, int]
    num_experts: int
    top_k: int
    num_tokens: int
    slots: int | None
    gpu: bool

    @classmethod
    def of(
        cls, place: Placement, axes: ExpertAxes, shape: tuple[int, int], num_experts: int, top_k: int,
        capacity: int | None, gpu: bool,
    ) -> "Geometry":  # fmt: skip
        """For this device's `shape` (rows, tokens of each); an expert takes at most `capacity` tokens of a row."""
        b, t = shape
        slots = None if capacity is None else b * min(capacity, t)
        return cls(axes, place.axis_sizes, num_experts, top_k, b * t, slots, gpu)

    @property
    def local(self) -> int:
        """Experts of one device."""
        return self.num_experts // self.size(self.axes.expert)

    @property
    def hops(self) -> tuple[str, ...]:
        """The axes that tokens travel over, in order: the mesh's last first, whose devices are neighbours."""
        return tuple(axis for axis in reversed(self.sizes) if axis in self.axes.exchanged)

    def size(self, axes: tuple[str, ...]) -> int:
        """Devices over which these axes go together."""
        return int(np.prod([self.sizes[axis] for axis in axes], dtype=int))

    @cached_property
    def coordinates(self) -> dict[str, np.ndarray]:
        """For each axis of the experts int [expert]: the coordinate of the device that holds it."""
        shape = [self.sizes[axis] for axis in self.axes.expert]
        places = np.unravel_index(np.arange(self.num_experts) // self.local, shape or [1])
        return dict(zip(self.axes.expert, places, strict=False))

    @cached_property
    def reachable(self) -> np.ndarray:
        """int [expert]: its number among the experts that this device's tokens are exchanged with: all that have this
        device's coordinate on the shared axes."""
        number = np.zeros(self.num_experts, int)
        for axis in self.axes.exchanged:
            number = number * self.sizes[axis] + self.coordinates[axis]
        return number * self.local + np.arange(self.num_experts) % self.local

    def served(self, expert_P: jax.Array, keep_P: jax.Array) -> jax.Array:
        """bool: the pairs of a token and an expert that are kept, and which this device is to serve or to send on."""
        for axis in self.axes.shared:
            keep_P = keep_P & (jnp.asarray(self.coordinates[axis])[expert_P] == jax.lax.axis_index(axis))
        return keep_P


def only(mask: jax.Array, x: jax.Array) -> jax.Array:
    """x where the mask of its leading dims is true, 0 elsewhere."""
    return jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), x, 0)
