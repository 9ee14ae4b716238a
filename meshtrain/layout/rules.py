"""Rules: which mesh axes shard a dim. A rule is `dim: axis`, `dim: (axis, axis)` (slowest first) or `dim: None`.

One mapping holds for every array; each class of arrays may add or override rows, and a later class inherits from an
earlier one: params -> grads -> optimizer. Activations stand apart. So ZeRO is not code but the class in whose rows a
dim of the weights is first put on the data axis.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from meshtrain.errors import InputError, nearest
from meshtrain.layout.dims import INHERITED, check_dim
from meshtrain.layout.finding import ERROR, Finding, attempt, raise_errors

Axes = tuple[str, ...]


@dataclass(frozen=True)
class Rules:
    """Rows dim -> axes. `source` names the config key of a row in errors; a row inherited keeps its own."""

    rows: Mapping[str, Axes]
    source: Mapping[str, str]

    @classmethod
    def parse(
        cls, mapping: Mapping[str, object], where: str, mesh_axes: tuple[str, ...], findings: list[Finding]
    ) -> "Rules":
        """Rules of one section (`where`, such as "rules") of a layout.

        A row with an unknown dim, a bad value or an axis that the mesh does not have is left out and added to
        `findings`.
        """
        rows: dict[str, Axes] = {}
        for dim, value in mapping.items():
            line = f"{where}.{dim}"
            known = attempt(findings, "unknown-dim", check_dim, dim, line)
            axes = attempt(findings, "bad-value", _axes, value, line)
            if known is None or axes is None:
                continue
            missing = [axis for axis in axes if axis not in mesh_axes]
            findings += [_unknown_axis(axis, line, mesh_axes) for axis in missing]
            if not missing:
                rows[dim] = axes
        return cls(rows, {dim: f"{where}.{dim}" for dim in rows})

    def override(self, other: "Rules") -> "Rules":
        """These rules with the rows of `other` on top."""
        return Rules({**self.rows, **other.rows}, {**self.source, **other.source})

    def of(self, dims: Iterable[str]) -> "Rules":
        """The rows of these dims alone."""
        return Rules({dim: self.rows[dim] for dim in dims}, {dim: self.source[dim] for dim in dims})

    def inherit(self) -> "Rules":
        """These rules with a row for each dim that has none of its own and takes that of another (dims.INHERITED)."""
        more = {dim: other for dim, other in INHERITED.items() if dim not in self.rows and other in self.rows}
        rows = {dim: self.rows[other] for dim, other in more.items()}
        return self.override(Rules(rows, {dim: self.source[other] for dim, other in more.items()}))

    def axes(self, dim: str) -> Axes:
        """The axes that shard `dim`, slowest-changing first; () where no rule names it."""
        return self.rows.get(dim, ())

    def spec(self, dims: tuple[str, ...]) -> PartitionSpec:
        """PartitionSpec of an array of these dims. InputError where one axis would shard two of its dims."""
        raise_errors(self.conflicts(dims))
        return partition_spec([self.axes(dim) for dim in dims])

    def conflicts(self, dims: tuple[str, ...]) -> list[Finding]:
        """A finding for each mesh axis that would shard two dims of an array of these dims."""
        findings, seen = [], dict[str, str]()
        for dim in dims:
            for axis in self.axes(dim):
                if axis in seen:
                    findings.append(self._conflict(axis, seen[axis], dim, dims))
                else:
                    seen[axis] = dim
        return findings

    def _conflict(self, axis: str, first: str, second: str, dims: tuple[str, ...]) -> Finding:
        return Finding(
            ERROR,
            "axis-twice",
            " and ".join(dict.fromkeys((self.source[first], self.source[second]))),
            f"the array [{', '.join(dims)}] would have the mesh axis {axis!r} twice, on {first!r} and on {second!r};"
            " a device cannot hold two different slices.",
            f"Take {axis!r} out of one of these rows (write `{second}=None` in the rows of one class to override it"
            f" there{', for such weights alone' if second in INHERITED else ''}).",
        )


def partition_spec(axes_per_dim: list[Axes]) -> PartitionSpec:
    """PartitionSpec from a tuple of axes per dimension: one axis stands bare, none is None."""
    return PartitionSpec(*[axes[0] if len(axes) == 1 else (axes or None) for axes in axes_per_dim])


def row_text(axes: Sequence[str]) -> str:
    """The value of a row as a layout file writes it: `"data"`, or `("data", "stage")`."""
    return f'"{axes[0]}"' if len(axes) == 1 else "(" + ", ".join(f'"{axis}"' for axis in axes) + ")"


def entry_axes(entry: object) -> Axes:
    """The axes in one entry of a PartitionSpec: the inverse of what `partition_spec` writes there."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]


def _unknown_axis(axis: str, line: str, mesh_axes: tuple[str, ...]) -> Finding:
    return Finding(
        ERROR,
        "unknown-axis",
        line,
        f"the mesh has no axis {axis!r}.{nearest(axis, mesh_axes)}",
        f"Its axes are: {', '.join(mesh_axes) or 'none'}.",
    )


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
