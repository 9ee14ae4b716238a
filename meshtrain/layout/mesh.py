"""The mesh: axis names (the user's own) and sizes, slowest-changing first, and the devices that fill it.

Devices are laid out by host: the last axes change fastest, so partners along them are neighbours on one host, where
links are fast; the first axis crosses hosts.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from meshtrain.errors import InputError
from meshtrain.layout.finding import ERROR, Finding, raise_errors
from meshtrain.layout.words import sizes_text

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # XLA ends the process at other names
FILL = -1  # the size of the one axis that takes what is left of the devices


@dataclass(frozen=True)
class MeshShape:
    """Axis sizes in order, slowest-changing first; at most one is -1 and takes the devices that are left."""

    sizes: Mapping[str, int]

    @classmethod
    def parse(cls, mapping: Mapping[str, object], findings: list[Finding] | None = None) -> "MeshShape":
        """The `mesh` section of a layout. InputError for a size that is no positive integer or for two -1.

        With `findings` nothing is raised: each problem is added to the list and the axis counts as of size 1.
        """
        found: list[Finding] = []
        sizes: dict[str, int] = {}
        filled: str | None = None
        for axis, size in mapping.items():
            sizes[axis] = 1
            if not NAME.fullmatch(axis):
                problem = (
                    f"the name {axis!r} cannot be used: the compiler takes letters a-z and A-Z, digits and _ only."
                )
                found.append(Finding(ERROR, "mesh", f"mesh.{axis}", problem, "Rename the axis, for example `axis_1`."))
            elif isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != FILL):
                problem = f"the size must be a positive integer or -1 (what is left), not {size!r}."
                found.append(Finding(ERROR, "mesh", f"mesh.{axis}", problem))
            elif size == FILL and filled is not None:
                problem = "both are -1, but only one axis can take what is left."
                remedy = f"Give mesh.{axis} a size, for example 1."
                found.append(Finding(ERROR, "mesh", f"mesh.{filled} and mesh.{axis}", problem, remedy))
            else:
                sizes[axis] = size
                filled = axis if size == FILL else filled
        if findings is None:
            raise_errors(found)
        else:
            findings += found
        return cls(sizes)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axis names, slowest-changing first."""
        return tuple(self.sizes)

    def resolve(self, num_devices: int) -> dict[str, int]:
        """Axis sizes for this many devices; InputError, with sizes that would work, where they do not multiply up."""
        sizes = dict(self.sizes)
        known = math.prod(size for size in sizes.values() if size != FILL)
        text = sizes_text(sizes) or "no axes"
        filled = next((axis for axis, size in sizes.items() if size == FILL), None)
        if filled is not None:
            if num_devices % known:
                raise InputError(
                    f"mesh.{filled}: -1 cannot be filled: the other axes of {text} take {known} devices, which does"
                    f" not divide the {num_devices} devices there are. {self._remedy(num_devices)}"
                )
            sizes[filled] = num_devices // known
        elif known != num_devices:
            raise InputError(
                f"mesh: {text} is {known} device{'s' * (known != 1)}, but there are {num_devices}."
                f" {self._remedy(num_devices)}"
            )
        return sizes

    def _remedy(self, num_devices: int) -> str:
        """A change of one axis that would fit, in words."""
        for axis, size in self.sizes.items():
            others = math.prod(s for a, s in self.sizes.items() if a != axis and s != FILL)
            if size != FILL and num_devices % others == 0:
                fitting = num_devices // others
                if FILL in self.sizes.values():
                    fitting = max(d for d in range(1, fitting + 1) if fitting % d == 0 and d <= max(size, 1))
                return f"mesh.{axis}={fitting} would work."
        if self.sizes:
            first, *rest = self.sizes
            ones = ", ".join(f"mesh.{axis}=1" for axis in rest)
            return f"mesh.{first}={num_devices}{' with ' + ones if ones else ''} would work."
        return f"Name an axis: mesh=dict(rows={num_devices}) would work, or run on one device."


def order_devices(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Devices by slice, host and local number, so that the fastest mesh axes stay inside a host."""
    return sorted(devices, key=lambda d: (getattr(d, "slice_index", 0) or 0, d.process_index, d.id))


def build_mesh(sizes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of resolved sizes over `devices` (default: all), by host, slowest axis outermost.

    Sharding inside is left to the compiler (axis type Auto): the layout's constraints tell it where arrays live.
    """
    ordered = order_devices(jax.devices() if devices is None else devices)
    grid = np.array(ordered, dtype=object).reshape(tuple(sizes.values()))
    return Mesh(grid, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def abstract_mesh(sizes: Mapping[str, int]) -> AbstractMesh:
    """A mesh of these sizes without devices: enough for shardings and for tracing, at any size."""
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))
