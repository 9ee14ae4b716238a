"""The axes that cut the batch and nothing else, and how a gradient is reduced over them: once a step, after all ticks.

Left to the compiler, the sum over the batch's axes would run for every microbatch. Where the layout stores what follows
from a gradient in parts over such an axis (ZeRO), its reduction is a reduce-scatter to those parts, else an all-reduce.
"""

from dataclasses import dataclass, replace

import jax
from jax.sharding import PartitionSpec

from meshtrain.layout import ArraySpec, Placement, Rules

Axes = tuple[str, ...]


def batch_axes(place: Placement) -> Axes:
    """The first axes of `batch`, slowest first, as long as they cut no weight in use and no other activation.

    None where weights are gathered in every pass: there the compiler has to see the axes that store them.
    """
    pipeline = place.layout.pipeline
    if pipeline is None or pipeline.gather != "step":
        return ()
    others = {
        axis
        for rules in (place.rules("use"), place.rules("activations"))
        for dim, axes in rules.rows.items()
        for axis in axes
        if dim != "batch"
    }
    found: list[str] = []
    for axis in place.rules("activations").axes("batch"):
        if axis in others:
            break
        found.append(axis)
    return tuple(found)


def inner_placement(place: Placement) -> Placement:
    """The placement that the stages see: the batch is not cut by axes that are theirs already, and where weights are
    gathered once a step, none is stored in parts any more."""
    layout, rows = place.layout, batch_axes(place)
    if layout.pipeline is None or layout.pipeline.gather != "step":
        return place
    rest = Rules({"batch": place.rules("activations").axes("batch")[len(rows) :]}, {"batch": "rules.batch"})
    rules, activations = layout.rules.override(rest), layout.activations.override(rest)
    return Placement(replace(layout, rules=rules, activations=activations, params=rules, grads=rules), place.mesh)


@dataclass(frozen=True)
class Share:
    """What is done with one gradient: summed over `summed`, and scattered along a dimension over its axes."""

    summed: Axes
    scattered: tuple[tuple[int, Axes], ...] = ()
    rank: int = 0

    @classmethod
    def of(cls, spec: ArraySpec, place: Placement, rows: Axes, over: Axes) -> "Share":
        """For the gradient of a weight, summed over the axes `over`: over those that are the batch's (`rows`) to where
        the optimizer has its part of it."""
        parts = {}
        for at, dim in enumerate(spec.dims):
            axes = place.rules("optimizer").axes(dim)
            mine = tuple(axis for axis in axes if axis in rows)
            if mine and axes[: len(mine)] == mine:  # (parts of parts of another axis are left to the compiler)
                parts[at] = mine
        gone = {axis for axes in parts.values() for axis in axes}
        return cls(tuple(axis for axis in over if axis not in gone), tuple(parts.items()), len(spec.dims))

    @property
    def spec(self) -> PartitionSpec:
        """How the reduced gradient lies over these axes."""
        axes = dict(self.scattered)
        return PartitionSpec(*(axes.get(at) for at in range(self.rank)))

    def reduce(self, gradient: jax.Array) -> jax.Array:
        """The sum, on each device the part that is its own; scattered first, so that less is left to sum."""
        for dimension, axes in self.scattered:
            gradient = jax.lax.psum_scatter(gradient, axes, scatter_dimension=dimension, tiled=True)
        return jax.lax.psum(gradient, self.summed) if self.summed else gradient
