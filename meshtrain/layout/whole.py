"""`WholeMatrices`: a stack of matrices from the parts in which it is stored to whole ones on each device, and back.

Whatever cuts a matrix is moved to the stack, an all-to-all for each dim that is cut; so the devices share the matrices
out, and none holds one that it does not need. A stack that does not divide is filled up with zeros.

    [layers, embed/n, mlp]  ->  [1, layers/n, embed, mlp]
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.inventory import axes_of
from meshtrain.layout.placement import Placement
from meshtrain.layout.rules import Axes, partition_spec


@dataclass(frozen=True, eq=False)
class WholeMatrices:
    """Of one weight in `optimizer` rows. spec: the weight's, its first dim a stack; inner: the dims of each matrix."""

    place: Placement
    spec: ArraySpec
    inner: tuple[int, ...]

    @cached_property
    def _axes(self) -> tuple[Axes, ...]:
        return axes_of(self.place, "optimizer", self.spec)

    @cached_property
    def cut(self) -> tuple[int, ...]:
        """The dims of a matrix that are stored in parts, in the order in which they become whole."""
        return tuple(i for i in self.inner if self._axes[i])

    def axes(self, dim: int) -> Axes:
        """The axes that such a dim is cut over."""
        return self._axes[dim]

    @cached_property
    def moved(self) -> ArraySpec:
        """The array that is exchanged: the stack in the parts that it has anyway, each filled up until it divides."""
        physical = self.place.physical(self.spec)
        parts = self.place.size(self._axes[0])
        num = self.place.size(tuple(axis for i in self.cut for axis in self._axes[i]))
        per_part = -(-physical.shape[0] // (parts * num)) * num
        return replace(physical, shape=(parts, per_part, *physical.shape[1:]), dims=(physical.dims[0], *physical.dims))

    @property
    def num_devices(self) -> int:
        """Over how many devices `moved` is cut, at every moment of the exchange."""
        return self.place.size(tuple(axis for of_dim in self._axes for axis in of_dim))

    @property
    def num_matrices(self) -> int:
        """How many whole matrices each device has between `bring` and `take_back`, zeros that fill up included."""
        return self.moved.size // self.num_devices // math.prod(self.spec.shape[i] for i in self.inner)

    @property
    def num_bytes(self) -> int:
        """Bytes of a device's part of `moved`: of the parts that it has, and of the whole matrices that it gets."""
        return self.moved.num_bytes // self.num_devices

    def bring(self, x: jax.Array) -> jax.Array:
        """`x` (as stored) as `moved`: whole matrices on each device. As it is, where nothing is cut."""
        if not self.cut:
            return x
        parts, per_part = self.moved.shape[:2]
        y = x.reshape(parts, x.shape[0] // parts, *x.shape[1:])
        y = jnp.pad(y, [(0, 0), (0, per_part - y.shape[1]), *[(0, 0)] * (y.ndim - 2)])
        for sharding in self._shardings:
            y = jax.lax.with_sharding_constraint(y, sharding)
        return y

    def take_back(self, y: jax.Array) -> jax.Array:
        """The inverse of `bring`."""
        if not self.cut:
            return y
        for sharding in reversed(self._shardings):
            y = jax.lax.with_sharding_constraint(y, sharding)
        shape = self.place.physical(self.spec).shape
        return y[:, : shape[0] // y.shape[0]].reshape(shape)

    @cached_property
    def _shardings(self) -> list[NamedSharding]:
        """One after the other, from the rows of the state to whole matrices."""
        entries: list[Axes] = [self._axes[0], (), *self._axes[1:]]
        found = [NamedSharding(self.place.mesh, partition_spec(entries))]
        for i in self.cut:
            entries[1], entries[i + 1] = entries[1] + self._axes[i], ()
            found.append(NamedSharding(self.place.mesh, partition_spec(entries)))
        return found
