"""`Inventory`: every array that a run places, by class, in logical shapes: what checks and tables walk over."""

from collections.abc import Iterator
from dataclasses import dataclass

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.layout import WEIGHT_KINDS
from meshtrain.layout.placement import Placement
from meshtrain.layout.rules import entry_axes

Named = tuple[tuple[str, ArraySpec], ...]

KINDS = (*WEIGHT_KINDS, "activations")


@dataclass(frozen=True)
class Inventory:
    """(path, spec) of every array of a class.

    params: the copy that computes. grads: as they are summed. optimizer: masters, moments and counters. activations:
    one for each place where the model fixes a sharding, of one microbatch. batch: the global batch as it arrives.
    """

    params: Named
    grads: Named
    optimizer: Named
    activations: Named
    batch: Named

    def named(self, kind: str) -> Named:
        """The arrays that the rows of a class hold for: the batch arrives as activations do."""
        own: Named = getattr(self, kind)
        return own + self.batch if kind == "activations" else own

    def paths(self) -> Iterator[tuple[str, str, ArraySpec]]:
        """(class, path, spec) of all arrays."""
        for kind in KINDS:
            for path, spec in self.named(kind):
                yield kind, path, spec


def axes_of(place: Placement, kind: str, spec: ArraySpec) -> tuple[tuple[str, ...], ...]:
    """For each dimension of an array the axes larger than 1 that cut it; the array must have no problems."""
    physical = place.physical(spec)
    axes = map(entry_axes, place.spec(kind, physical.dims, physical.shape))
    return tuple(tuple(axis for axis in of_dim if place.axis_sizes[axis] > 1) for of_dim in axes)


def local_shape(place: Placement, kind: str, spec: ArraySpec) -> tuple[int, ...]:
    """The shape of one device's part, padding included."""
    physical = place.physical(spec)
    return tuple(place.sharding(kind, physical.dims, physical.shape).shard_shape(physical.shape))


def local_bytes(place: Placement, kind: str, spec: ArraySpec) -> int:
    """Bytes of one device's part, padding included."""
    return ArraySpec(local_shape(place, kind, spec), spec.dtype, spec.dims).num_bytes
