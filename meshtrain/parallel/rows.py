"""The axes that cut the batch and no dense weight: between them each device works on its own rows, and what it has
summed up over many microbatches is joined once. Over these axes experts may be cut, too: each device keeps its own, all
tokens travel to them, and there is nothing to join.

Left to the compiler, the sum of a gradient over these axes would run for every microbatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jax.sharding import PartitionSpec as P

from meshtrain.layout import ArraySpec, Placement, Rules, Tree, map_specs
from meshtrain.layout.rules import Axes, entry_axes
from meshtrain.parallel.shard import free_axes, without

EXPERT = "expert"  # the dim of weights that may be cut


def own_axes(place: Placement, kinds: Sequence[str]) -> Axes:
    """The first axes of `batch`, slowest first, as long as they cut no array of these classes along another dim than
    that of the experts, of which they have to be the first ones: so that what a device keeps is one block."""
    others = {
        axis for kind in kinds for dim, axes in place.rules(kind).rows.items() for axis in axes
        if dim not in ("batch", EXPERT)
    }  # fmt: skip
    found: list[str] = []
    for axis in place.rules("activations").axes("batch"):
        if axis in others:
            break
        found.append(axis)
    rows = [place.rules(kind).axes(EXPERT) for kind in ("use", *kinds)]
    while any(row[: len(kept := _kept(rows[0], found))] != kept or _kept(row, found) != kept for row in rows):
        found.pop()
    return tuple(found)


def _kept(row: Axes, axes: Sequence[str]) -> Axes:
    return tuple(axis for axis in row if axis in axes)


def own_specs(place: Placement, axes: Axes, specs: Tree) -> Tree:
    """How weights of these ArraySpec come to code between `axes`, and how their gradients leave it: PartitionSpecs."""

    def spec(one: ArraySpec) -> P:
        kept = _kept(place.rules("use").axes(EXPERT), axes)
        return P(*(kept or None if dim == EXPERT else None for dim in one.dims))

    return map_specs(spec, specs)


def own_rows(place: Placement, axes: Axes) -> Placement:
    """The placement that code between these first axes of `batch` sees: there they cut the batch no more."""
    layout, left = place.layout, place.rules("activations").axes("batch")[len(axes) :]
    override = Rules({"batch": left}, {"batch": "rules.batch"})
    changed = {kind: getattr(layout, kind).override(override) for kind in ("rules", "activations")}
    return Placement(replace(layout, **changed), place.mesh)


def reaching(place: Placement) -> Placement:
    """The placement between these axes for code whose tokens travel over those that cut experts: these are within its
    reach, and cut the batch."""
    row = place.axes(EXPERT, "use")
    held = without(row, free_axes(place, EXPERT, "use"))
    if not held:
        return place
    batch = Rules({"batch": held + place.rules("activations").axes("batch")}, {"batch": "rules.batch"})
    layout = replace(place.layout, activations=place.layout.activations.override(batch))
    return Placement(layout, place.mesh, reached=held)


def on_rows(
    place: Placement, axes: Axes, f: Callable[[Tree, Tree], Tree], same_specs: Tree, sum_specs: Tree
) -> Callable[[Tree, Tree], Tree]:
    """f(same, batch_MB) -> sums, as a function of whole arrays; `f` sees all of `same` (or its part: `own_specs`) and,
    between `axes`, its own rows of the arrays [microbatch, batch, ...]. Each device's part of a sum stands in a dim of
    its own until the compiler joins them where the result is to lie: a reduce-scatter to ZeRO's rows, or an all-reduce.
    same_specs, sum_specs: PartitionSpecs over `axes`, or trees of them that the trees begin with."""
    if not axes:
        return f

    def part(same: Tree, batch_MB: Tree) -> Tree:
        return jax.tree.map(lambda x: x[None], f(same, batch_MB))

    parts = jax.shard_map(
        part, mesh=place.mesh, in_specs=(same_specs, P(None, axes)),
        out_specs=jax.tree.map(lambda spec: part_spec(axes, spec), sum_specs, is_leaf=lambda x: isinstance(x, P)),
        axis_names=set(axes), check_vma=False,
    )  # fmt: skip
    return lambda same, batch_MB: jax.tree.map(lambda x: x.sum(0), parts(same, batch_MB))


def part_spec(axes: Axes, spec: P) -> P:
    """[parts, ...]: the sums of all devices, where `spec` is that of one: a part for each device along the axes that do
    not cut it."""
    cut = tuple(axis for entry in spec for axis in entry_axes(entry))
    return P(without(axes, cut) or None, *spec)
