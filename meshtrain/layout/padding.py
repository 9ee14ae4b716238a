"""Between logical arrays (checkpoints, initial weights) and physical ones (on devices).

Physically the vocabulary is padded until its axes divide it, and a pipeline's layers lie stage by stage, each piece
filled up to the longest one's length. Padding is zeros: it gets no gradient and is never stored.
"""

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout.array import ArraySpec, Tree, map_specs
from meshtrain.layout.placement import LAYERS, Placement


def pad_tree(tree: Tree, specs: Tree, place: Placement) -> Tree:
    """Arrays of the logical shapes of `specs` -> arrays of the physical shapes, filled up with zeros."""

    def pad(spec: ArraySpec, x: jax.Array) -> jax.Array:
        widths = [(0, to - size) for to, size in zip(place.physical(spec).shape, x.shape, strict=True)]
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    return arrange_tree(map_specs(pad, specs, tree), specs, place)


def strip_tree(tree: Tree, specs: Tree, place: Placement | None = None) -> Tree:
    """Arrays of physical shapes -> arrays of the logical shapes of `specs`: the inverse of `pad_tree`.

    Without `place` the layers are taken to be in the model's order already.
    """

    def strip(spec: ArraySpec, x: jax.Array) -> jax.Array:
        return x if x.shape == spec.shape else x[tuple(slice(size) for size in spec.shape)]

    return map_specs(strip, specs, arrange_tree(tree, specs, place, back=True) if place else tree)


def arrange_tree(tree: Tree, specs: Tree, place: Placement, *, back: bool = False) -> Tree:
    """Arrays of physical shapes whose layers are in the model's order, padding last -> in the order of the devices.

    With `back` the other way. `specs` is the tree in logical shapes. The same arrays where there is no pipeline.
    """

    def arrange(spec: ArraySpec, x: jax.Array) -> jax.Array:
        if LAYERS not in spec.dims:
            return x
        dimension = spec.dims.index(LAYERS)
        order = _order(place, spec.shape[dimension])
        if order is None:
            return x
        return x.take(np.argsort(order) if back else order, axis=dimension)

    return map_specs(arrange, specs, tree)


def rearranges(specs: Tree, place: Placement) -> bool:
    """Whether `arrange_tree` changes any array."""
    found = jax.tree.leaves(
        map_specs(lambda s: LAYERS in s.dims and _order(place, s.shape[s.dims.index(LAYERS)]) is not None, specs)
    )
    return any(found)


def _order(place: Placement, num_layers: int) -> np.ndarray | None:
    """For each physical slot the layer in it, the padding numbered from num_layers on; None where they are the same."""
    ids = place.layer_ids(num_layers)
    if ids is None:
        return None
    order = ids.ravel().copy()
    spare = order < 0
    order[spare] = num_layers + np.arange(spare.sum())
    return None if (order == np.arange(order.size)).all() else order


def physical_specs(specs: Tree, place: Placement) -> Tree:
    """The specs of the arrays as they lie on devices."""
    return map_specs(place.physical, specs)
