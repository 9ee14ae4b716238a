"""Who holds how much: each array's cut, one device's part and its bytes, from the placement that training uses."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.inventory import WEIGHT_KINDS, Inventory, axes_of, local_bytes, local_shape
from meshtrain.layout.layout import Layout
from meshtrain.layout.placement import Placement
from meshtrain.layout.roles import zero_stage
from meshtrain.layout.rules import Rules


@dataclass(frozen=True)
class Row:
    """One array, or several of one weight that are cut alike (`count`: its master and moments).

    shape is logical, local the part of one device with padding, num_bytes that part's bytes times `count`.
    """

    kind: str
    path: str
    dims: tuple[str, ...]
    axes: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]
    local: tuple[int, ...]
    dtype: str
    num_bytes: int
    count: int = 1

    @property
    def cut(self) -> str:
        """The dims with the axes that cut them: `[layers, embed_data, mlp_tensor]`."""
        return "[" + ", ".join("_".join((dim, *axes)) for dim, axes in zip(self.dims, self.axes, strict=True)) + "]"


def rows(place: Placement, kind: str, arrays: Iterable[tuple[str, ArraySpec]]) -> list[Row]:
    """A row for each array of a class, in order; errors as in `Placement.spec`."""
    return [
        Row(
            kind,
            path,
            spec.dims,
            axes_of(place, kind, spec),
            spec.shape,
            local_shape(place, kind, spec),
            np.dtype(spec.dtype).name,
            local_bytes(place, kind, spec),
        )
        for path, spec in arrays
    ]


def gathered(table: list[Row], weights: Iterable[str]) -> list[Row]:
    """The optimizer's rows with those of one weight (master, moments) as one where they are alike."""
    found: dict[tuple[object, ...], Row] = {}
    for row in table:
        weight = next((path for path in weights if row.path == path or row.path.endswith("/" + path)), row.path)
        key = (weight, row.dims, row.axes, row.shape, row.dtype)
        if key in found:
            before = found[key]
            found[key] = replace(before, count=before.count + 1, num_bytes=before.num_bytes + row.num_bytes)
        else:
            found[key] = replace(row, path=weight)
    return list(found.values())


def state_bytes(place: Placement, arrays: Inventory) -> dict[str, int]:
    """Bytes per device of each class of the training state."""
    return {kind: sum(local_bytes(place, kind, spec) for _, spec in arrays.named(kind)) for kind in WEIGHT_KINDS}


def by_stage(place: Placement, arrays: Inventory) -> dict[int, int] | None:
    """ZeRO stage 0..3 -> bytes of state per device, were this layout's ZeRO rows (or embed over the batch) moved there.

    None where no axis has that role, or where a stage cannot be placed.
    """
    moved = at_stages(place)
    for one in moved.values():
        if any(
            one.problems(kind, (physical := one.physical(spec)).dims, physical.shape)
            for kind in WEIGHT_KINDS
            for _, spec in arrays.named(kind)
        ):
            return None
    return {stage: sum(state_bytes(one, arrays).values()) for stage, one in moved.items()} or None


def at_stages(place: Placement) -> dict[int, Placement]:
    """ZeRO stage 0..3 -> the layout with its ZeRO rows (or embed over the batch) first there; empty where no axis has
    that role. Whether a stage can be placed is not asked."""
    storage = _storage_rows(place)
    if not storage:
        return {}
    return {stage: Placement(_at_stage(place.layout, storage, stage), place.mesh) for stage in range(4)}


def _storage_rows(place: Placement) -> dict[str, tuple[str, ...]]:
    """The rows that cut weights for storage alone; where there are none, embed over the axes of the batch."""
    use, last = place.rules("use"), place.rules("optimizer")
    storage = {dim: axes for dim, axes in last.rows.items() if axes != use.axes(dim)}
    batch = place.axes("batch")
    if not storage and batch and not place.axes("embed", "use"):
        storage = {"embed": batch}
    return storage


def _at_stage(layout: Layout, storage: dict[str, tuple[str, ...]], stage: int) -> Layout:
    """The layout with its storage rows first in optimizer (1), grads (2), params (3), or nowhere (0)."""
    moved = layout.rules.override(Rules(storage, {dim: f"optimizer.{dim}" for dim in storage}))
    first = 3 - stage
    kinds = {kind: (moved if i >= first else layout.rules) for i, kind in enumerate(WEIGHT_KINDS)}
    return replace(layout, **kinds)  # type: ignore[arg-type]


def stage_of(place: Placement) -> int:
    """The highest ZeRO stage of any axis; 0: none."""
    return max((zero_stage(place, axis) for axis, size in place.axis_sizes.items() if size > 1), default=0)
