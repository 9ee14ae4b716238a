"""Between logical arrays (checkpoints, initial weights) and physical ones (on devices): the padding of the vocabulary.

Padded rows are zeros, get no probability and so no gradient, and are never stored.
"""

import jax
import jax.numpy as jnp

from meshtrain.layout.array import ArraySpec, Tree, map_specs
from meshtrain.layout.placement import Placement


def pad_tree(tree: Tree, specs: Tree, place: Placement) -> Tree:
    """Arrays of the logical shapes of `specs` -> arrays of the physical shapes, filled up with zeros at the end."""

    def pad(spec: ArraySpec, x: jax.Array) -> jax.Array:
        widths = [(0, to - size) for to, size in zip(place.physical(spec).shape, x.shape, strict=True)]
        return jnp.pad(x, widths) if any(after for _, after in widths) else x

    return map_specs(pad, specs, tree)


def strip_tree(tree: Tree, specs: Tree) -> Tree:
    """Arrays of physical shapes -> arrays of the logical shapes of `specs`: the inverse of `pad_tree`."""

    def strip(spec: ArraySpec, x: jax.Array) -> jax.Array:
        return x if x.shape == spec.shape else x[tuple(slice(size) for size in spec.shape)]

    return map_specs(strip, specs, tree)


def physical_specs(specs: Tree, place: Placement) -> Tree:
    """The specs of the arrays as they lie on devices."""
    return map_specs(place.physical, specs)
