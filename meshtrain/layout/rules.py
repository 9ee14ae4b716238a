"""Rules: which mesh axes shard a dim. A rule is `dim: axis`, `dim: (axis, axis)` (slowest first) or `dim: None`.

One mapping holds for every array; each class of arrays may add or override rows, and a later class inherits from an
earlier one: params -> grads -> optimizer. Activations stand apart. So ZeRO is not code but the class in whose rows a
dim of the weights is first put on the data axis.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from meshtrain.errors import InputError, nearest
from meshtrain.layout.dims import check_dim

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """Rows dim -> axes. `source` names the config key of a row in errors; a row inherited keeps its own."""

    rows: Mapping[str, Axes]
    source: Mapping[str, str]

    @classmethod
    def parse(cls, mapping: Mapping[str, object], where: str) -> "Rules":
        """Rules of one section (`where`, such as "rules") of a layout; InputError for an unknown dim or a bad value."""
        rows = {check_dim(dim, f"{where}.{dim}"): _axes(value, f"{where}.{dim}") for dim, value in mapping.items()}
        return cls(rows, {dim: f"{where}.{dim}" for dim in rows})

    def override(self, other: "Rules") -> "Rules":
        """These rules with the rows of `other` on top."""
        return Rules({**self.rows, **other.rows}, {**self.source, **other.source})

    def axes(self, dim: str) -> Axes:
        """The axes that shard `dim`, slowest-changing first; () where no rule names it."""
        return self.rows.get(dim, ())

    def spec(self, dims: tuple[str, ...]) -> PartitionSpec:
        """PartitionSpec of an array of these dims. InputError where one axis would shard two of its dims."""
        seen: dict[str, str] = {}
        for dim in dims:
            for axis in self.axes(dim):
                if axis in seen:
                    raise InputError(
                        f"{self.source[dim]} and {self.source[seen[axis]]}: the array [{', '.join(dims)}] would have"
                        f" the mesh axis {axis!r} twice, on {seen[axis]!r} and on {dim!r}; a device cannot hold two"
                        f" different slices. Take {axis!r} out of one of these rows (write `{dim}=None` in the rows of"
                        " one class to override it there)."
                    )
                seen[axis] = dim
        return partition_spec([self.axes(dim) for dim in dims])

    def check_axes(self, mesh_axes: tuple[str, ...]) -> None:
        """InputError for the first rule that names an axis which the mesh does not have."""
        for dim, axes in self.rows.items():
            for axis in axes:
                if axis not in mesh_axes:
                    raise InputError(
                        f"{self.source[dim]}: the mesh has no axis {axis!r}.{nearest(axis, mesh_axes)}"
                        f" Its axes are: {', '.join(mesh_axes) or 'none'}."
                    )


def partition_spec(axes_per_dim: list[Axes]) -> PartitionSpec:
    """PartitionSpec from a tuple of axes per dimension: one axis stands bare, none is None."""
    return PartitionSpec(*[axes[0] if len(axes) == 1 else (axes or None) for axes in axes_per_dim])


def _axes(value: object, where: str) -> Axes:
    if value is None:
        return ()
    axes = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else None
    if axes is None or not all(isinstance(axis, str) and axis for axis in axes):
        raise InputError(f"{where}: {value!r} is not an axis name, a tuple of axis names, or None.")
    if len(set(axes)) != len(axes):
        raise InputError(f"{where}: the axis {_twice(axes)!r} is named twice; name each axis once.")
    return axes


def _twice(axes: Axes) -> str:
    return next(axis for axis in axes if axes.count(axis) > 1)
