"""The axes that cut the batch and nothing else: between them each device works on its own rows, and what it has summed
up over many microbatches is joined once.

Left to the compiler, the sum of a gradient over these axes would run for every microbatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
from jax.sharding import PartitionSpec as P

from meshtrain.layout import Placement, Rules, Tree

Axes = tuple[str, ...]


def own_axes(place: Placement, kinds: Sequence[str]) -> Axes:
    """The first axes of `batch`, slowest first, as long as they cut no array of these classes along another dim."""
    others = {axis for kind in kinds for dim, axes in place.rules(kind).rows.items() for axis in axes if dim != "batch"}
    found: list[str] = []
    for axis in place.rules("activations").axes("batch"):
        if axis in others:
            break
        found.append(axis)
    return tuple(found)


def own_rows(place: Placement, axes: Axes) -> Placement:
    """The placement that code between these first axes of `batch` sees: there they cut the batch no more."""
    layout, left = place.layout, place.rules("activations").axes("batch")[len(axes) :]
    override = Rules({"batch": left}, {"batch": "rules.batch"})
    changed = {kind: getattr(layout, kind).override(override) for kind in ("rules", "activations")}
    return Placement(replace(layout, **changed), place.mesh)


def on_rows(place: Placement, axes: Axes, f: Callable[[Tree, Tree], Tree]) -> Callable[[Tree, Tree], Tree]:
    """f(same, batch_MB) -> sums, as a function of whole arrays; `f` sees all of `same` and, between `axes`, its own
    rows of the arrays [microbatch, batch, ...]. Each device's part of a sum stands in a dim of its own until the
    compiler joins them where the result is to lie: a reduce-scatter to ZeRO's rows, or an all-reduce."""
    if not axes:
        return f

    def part(same: Tree, batch_MB: Tree) -> Tree:
        return jax.tree.map(lambda x: x[None], f(same, batch_MB))

    parts = jax.shard_map(
        part, mesh=place.mesh, in_specs=(P(), P(None, axes)), out_specs=P(axes), axis_names=set(axes), check_vma=False
    )
    return lambda same, batch_MB: jax.tree.map(lambda x: x.sum(0), parts(same, batch_MB))
