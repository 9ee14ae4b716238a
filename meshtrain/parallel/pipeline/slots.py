"""Arrays that are one of several: taken out of slots, put into them, added up in them; and work that may not be due."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshtrain.layout import Tree
from meshtrain.parallel.pipeline.plan import IDLE


def take(array: jax.Array, index: jax.Array) -> jax.Array:
    """array[index], or array[0] where the index is IDLE."""
    return jax.lax.dynamic_index_in_dim(array, jnp.maximum(index, 0), keepdims=False)


def at_most_once(asked: jax.Array, op: Callable[[Any], Any], value: Any) -> Any:
    """op(value) where it is asked for, else `value`. As a loop, which changes its arrays in place: what comes out of a
    branch is a copy, and the gradients of the tables are among the largest arrays of a stage."""
    return jax.lax.while_loop(lambda it: it[0], lambda it: (jnp.zeros((), bool), op(it[1])), (asked, value))[1]


def put(slots: jax.Array, slot: jax.Array, value: jax.Array) -> jax.Array:
    """`value` in the slot, or nothing changed where the slot is IDLE."""
    at = jnp.maximum(slot, 0)
    value = jnp.where(slot == IDLE, take(slots, at), value)
    return jax.lax.dynamic_update_index_in_dim(slots, value, at, 0)


def masked(tree: Tree, busy: jax.Array) -> Tree:
    """The tree, or zeros where a stage works for nothing."""
    return jax.tree.map(lambda x: jnp.where(busy, x, jnp.zeros_like(x)), tree)


def add(total: Tree, gradient: Tree) -> Tree:
    """total + gradient in total's dtype, for each array of the trees."""
    return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, gradient)


def add_at(total: Tree, index: jax.Array, value: Tree) -> Tree:
    """total[index] += value, for each array of the trees."""

    def one(t: jax.Array, v: Any) -> jax.Array:
        if t.shape[0] == 1:
            return t + v[None].astype(t.dtype)
        return jax.lax.dynamic_update_index_in_dim(t, take(t, index) + v.astype(t.dtype), index, 0)

    return jax.tree.map(one, total, value)
