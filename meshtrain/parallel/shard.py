"""`on_shards`: a function of one device's slices, applied to whole arrays; the only door to explicit collectives.

Only the axes that the specs mention become manual. Over any other axis the arrays are the same on every device, and
leaving those axes to the compiler keeps the backward pass free of sums over equal copies.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshtrain.layout import Placement, Tree
from meshtrain.layout.rules import entry_axes


def on_shards(place: Placement, f: Callable[..., Any], in_specs: Tree, out_specs: Tree) -> Callable[..., Any]:
    """`f` of this device's slices as a function of whole arrays, cut and joined as the trees of PartitionSpec say.

    Inside another shard_map the axes that are manual there are out of reach: they are taken out of the specs, and `f`
    sees the slices that it was given. `f` itself where no axis is left. Collectives in `f` must name free axes only.
    """
    in_specs, out_specs = (jax.tree.map(_free, specs, is_leaf=_is_spec) for specs in (in_specs, out_specs))
    axes = set(_mentioned((in_specs, out_specs)))
    if not axes:
        return f
    context = jax.sharding.get_abstract_mesh()
    mesh = context if context.manual_axes else place.mesh
    if place.in_parts:
        whole = PartitionSpec()
        mapped = jax.shard_map(f, mesh=mesh, in_specs=whole, out_specs=whole, axis_names=axes, check_vma=False)
        return _of_parts(place, mapped, in_specs, out_specs)
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axes, check_vma=False)


def on_copies(place: Placement, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f`, of arrays that are equal over every axis that is still free, with those axes manual while it runs.

    For kernels that the compiler cannot partition. Differentiable (in all arguments), and the gradient is not summed
    over the copies: the transpose of a shard_map would do that, so forward and backward are shard_maps of their own.
    """
    context = jax.sharding.get_abstract_mesh()
    axes = without(tuple(axis for axis, size in place.axis_sizes.items() if size > 1), context.manual_axes)
    if not axes:
        return f
    mesh, whole = context if context.manual_axes else place.mesh, PartitionSpec()

    def mapped(g: Callable[..., Any]) -> Callable[..., Any]:
        return jax.shard_map(
            g, mesh=mesh, in_specs=whole, out_specs=whole, axis_names=set(axes), check_vma=False
        )  # fmt: skip

    @jax.custom_vjp
    def copies(*arrays: jax.Array) -> Any:
        return mapped(f)(*arrays)

    # What `jax.vjp` returns is a pytree of arrays, equal over the copies like all else here.
    copies.defvjp(mapped(partial(jax.vjp, f)), mapped(lambda pull, gradient: pull(gradient)))
    return copies


def sum_over(x: jax.Array, axes: tuple[str, ...], place: Placement, scatter: int | None = None) -> jax.Array:
    """In a shard: the sum over these axes in x's dtype; with `scatter` each device's part of it along that dim.

    On CPU devices bfloat16 is summed in float32, as their compiler would do by itself: it ends the process at such a
    sum in a shard_map that leaves it any axis, even one of size 1.
    """
    wide = x.astype(jnp.float32) if place.platform == "cpu" else x
    if scatter is None:
        return jax.lax.psum(wide, axes).astype(x.dtype)
    return jax.lax.psum_scatter(wide, axes, scatter_dimension=scatter, tiled=True).astype(x.dtype)


def free_axes(place: Placement, dim: str, kind: str = "activations") -> tuple[str, ...]:
    """The axes that cut `dim` here: those of the layout without the ones that an outer shard_map made manual, but with
    those of them that the placement reaches."""
    return without(place.axes(dim, kind), without(jax.sharding.get_abstract_mesh().manual_axes, place.reached))


def held_axes(place: Placement, dim: str) -> tuple[str, ...]:
    """The axes that cut an activation's `dim` outside the code being traced: an outer shard_map made them manual."""
    return without(place.axes(dim), free_axes(place, dim))


def without(axes: tuple[str, ...], *taken: tuple[str, ...]) -> tuple[str, ...]:
    """`axes` in order, without those in any of `taken`."""
    gone = {axis for group in taken for axis in group}
    return tuple(axis for axis in axes if axis not in gone)


def spec_without(spec: PartitionSpec, taken: tuple[str, ...]) -> PartitionSpec:
    """The spec without these axes."""
    return PartitionSpec(*(without(entry_axes(entry), taken) or None for entry in spec))


def shard_index(axes: tuple[str, ...]) -> jax.Array | int:
    """This device's number among the shards over `axes`, the first axis slowest; 0 where there are none."""
    return jax.lax.axis_index(axes) if axes else 0


def _of_parts(place: Placement, f: Callable[..., Any], in_specs: Tree, out_specs: Tree) -> Callable[..., Any]:
    """`f` where arrays are one device's parts already, but perhaps those of another spec."""

    def parts(specs: Tree, arrays: Tree, result: bool) -> Tree:
        one = lambda spec, tree: jax.tree.map(lambda x: place.part(x, spec, result), tree)  # noqa: E731
        return jax.tree.map(one, specs, arrays, is_leaf=_is_spec)

    return lambda *arrays: parts(out_specs, f(*parts(in_specs, arrays, False)), True)


def _free(spec: PartitionSpec) -> PartitionSpec:
    """The spec without the axes that are manual already."""
    return spec_without(spec, jax.sharding.get_abstract_mesh().manual_axes)


def _is_spec(leaf: object) -> bool:
    return isinstance(leaf, PartitionSpec)


def _mentioned(specs: Tree) -> Iterator[str]:
    for spec in jax.tree.leaves(specs, is_leaf=_is_spec):
        for entry in spec:
            yield from entry_axes(entry)
