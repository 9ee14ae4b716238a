"""Dispatch with a capacity: each expert has a fixed number of slots for each device's tokens; empty ones are zeros.

Which pairs are dropped is decided before (place.py). One plain all-to-all for each axis, the fastest links first, and
batched products: nothing depends on the routing but what is in the slots.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from meshtrain.parallel.experts.geometry import Geometry, only


class Filled(NamedTuple):
    """pair [expert x slot]: which pair is in it; slot [pair]: where it is; both -1 for none."""

    pair: jax.Array
    slot: jax.Array


class Slots:
    """The exchange of one geometry; `Filled` says what is in the slots."""

    def __init__(self, geometry: Geometry):
        assert geometry.slots is not None
        self.geometry, self.slots = geometry, geometry.slots
        self.shape = [geometry.sizes[axis] for axis in geometry.axes.exchanged]
        self.experts = geometry.size(geometry.axes.exchanged) * geometry.local

    def route(self, expert_P: jax.Array, keep_P: jax.Array) -> Filled:
        """The slot of each pair that is kept; pairs of one expert stand in order."""
        number = jnp.asarray(self.geometry.reachable)[expert_P]
        number = jnp.where(self.geometry.served(expert_P, keep_P), number, self.experts)
        order = jnp.argsort(number, stable=True)
        ordered = number[order]
        first = jnp.searchsorted(ordered, jnp.arange(self.experts + 1))
        at = first[:-1, None] + jnp.arange(self.slots)
        filled = at < first[1:, None]
        pair = jnp.where(filled, order[jnp.minimum(at, order.size - 1)], -1)
        place = jnp.arange(order.size) - first[ordered]
        slot = jnp.where(ordered < self.experts, ordered * self.slots + place, -1)
        return Filled(pair.reshape(-1).astype(jnp.int32), slot[jnp.argsort(order)].astype(jnp.int32))

    def send(self, filled: Filled, x: jax.Array, per: int) -> jax.Array:
        """[experts of this device x slots of all, ..] from x [tokens, ..] (per = top_k) or [pairs, ..] (per = 1)."""
        rows = only(filled.pair >= 0, x[jnp.maximum(filled.pair, 0) // per])
        rows = rows.reshape(*self.shape, self.geometry.local, self.slots, *x.shape[1:])
        for axis in self.geometry.hops:
            rows = self._swap(rows, axis)
        rows = jnp.moveaxis(rows, len(self.shape), 0)
        return rows.reshape(-1, *x.shape[1:])

    def bring(self, filled: Filled, rows: jax.Array) -> jax.Array:
        """[pairs, ..] from rows as `send` gives them; 0 for pairs without a slot."""
        back = rows.reshape(self.geometry.local, *self.shape, self.slots, *rows.shape[1:])
        back = jnp.moveaxis(back, 0, len(self.shape))
        for axis in reversed(self.geometry.hops):
            back = self._swap(back, axis)
        back = back.reshape(-1, *rows.shape[1:])
        return only(filled.slot >= 0, back[jnp.maximum(filled.slot, 0)])

    def times(self, filled: Filled, x_RA: jax.Array, w_EAB: tuple[jax.Array, ...]) -> jax.Array:
        """[R, c, B]: each row times the c matrices of its expert."""
        product = lambda x, *w: jnp.stack([x @ v for v in w], axis=1)  # noqa: E731
        joined = lambda x, *w: (x @ jnp.concatenate(w, axis=1)).reshape(x.shape[0], len(w), -1)  # noqa: E731
        y = self._each(product, joined, self._by_expert(x_RA), *w_EAB)
        return y.reshape(-1, *y.shape[2:])

    def times_transposed(self, filled: Filled, x_RcB: jax.Array, w_EAB: tuple[jax.Array, ...]) -> jax.Array:
        """[R, A]: each row times the transposed matrices of its expert, added up over c."""
        product = lambda x, *w: sum(x[:, c] @ v.T for c, v in enumerate(w))  # noqa: E731
        joined = lambda x, *w: x.reshape(x.shape[0], -1) @ jnp.concatenate(w, axis=1).T  # noqa: E731
        y = self._each(product, joined, self._by_expert(x_RcB), *w_EAB)
        return y.reshape(-1, *y.shape[2:])

    def outer(self, filled: Filled, x_RA: jax.Array, y_RcB: jax.Array) -> tuple[jax.Array, ...]:
        """The gradients of the c matrices [E, A, B], float32."""
        num = y_RcB.shape[1]
        one = partial(jnp.matmul, preferred_element_type=jnp.float32)
        product = lambda x, y: tuple(one(x.T, y[:, c]) for c in range(num))  # noqa: E731
        joined = lambda x, y: tuple(jnp.split(one(x.T, y.reshape(y.shape[0], -1)), num, axis=1))  # noqa: E731
        return self._each(product, joined, self._by_expert(x_RA), self._by_expert(y_RcB))

    def _each(self, product: Callable[..., Any], joined: Callable[..., Any], *arrays: jax.Array) -> Any:
        """The product of each expert: batched ones, or on a CPU, where that is slow, one joined expert by expert."""
        if self.geometry.gpu:
            return jax.vmap(product)(*arrays)
        return lax.map(lambda of_one: joined(*of_one), arrays)

    def _swap(self, rows: jax.Array, axis: str) -> jax.Array:
        """The all-to-all over one axis, of the dim that counts the devices of this axis."""
        dimension = self.geometry.axes.exchanged.index(axis)
        return lax.all_to_all(rows, axis, dimension, dimension, tiled=True)

    def _by_expert(self, x: jax.Array) -> jax.Array:
        return x.reshape(self.geometry.local, -1, *x.shape[1:])
