"""Dropless dispatch: every pair of a token and an expert travels. One hop for each axis, the fastest links first.

    sort by destination on the axis | ragged all-to-all | .. next axis .. | sort by expert       and back the same way

Where a row goes follows from counts: every device tells the others of the axis how many rows it has for each expert.
Buffers have a fixed size that no routing exceeds: tokens of all devices x min(top_k, experts of a device) rows, up to
as many times what an even load needs as there are devices. That memory is the price of dropping nothing; what is *sent*
is what there is. On a CPU, which has no ragged all-to-all, blocks of the largest possible size are exchanged instead.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshtrain.parallel.experts import grouped
from meshtrain.parallel.experts.geometry import Geometry, only


class Hop(NamedTuple):
    """order: for each row sorted by destination the row before; back: the other way round. sizes [1, from, to]: rows
    that travel on the axis."""

    order: jax.Array
    back: jax.Array
    sizes: jax.Array


class Routes(NamedTuple):
    """The hops, the sort by expert behind the last of them (order: with rows to spare behind it) and the other way
    round, how many rows each of this device's experts gets [1, E]."""

    hops: tuple[Hop, ...]
    order: jax.Array
    back: jax.Array
    sizes: jax.Array


class Dropless:
    """The exchange of one geometry; `Routes` say who goes where."""

    def __init__(self, geometry: Geometry):
        self.geometry = geometry
        self.axes = geometry.hops

    def num_rows(self, hops: int) -> int:
        """Rows of the buffer after so many hops. A token goes to at most min(top_k, experts behind the hop)."""
        if not hops:
            return self.geometry.num_tokens * self.geometry.top_k
        ahead = self.geometry.local * self.geometry.size(self.axes[hops:])
        return self.geometry.num_tokens * self.geometry.size(self.axes[:hops]) * min(self.geometry.top_k, ahead)

    def route(self, expert_P: jax.Array, keep_P: jax.Array) -> Routes:
        """The way of each pair: its expert, and whether it goes at all."""
        number = self.geometry.num_experts
        expert_R = jnp.where(self.geometry.served(expert_P, keep_P), expert_P, number)
        hops = []
        for hop, axis in enumerate(self.axes):
            to_E = self.geometry.coordinates[axis]
            order, counts_E = _sort(expert_R, np.lexsort((np.arange(number), to_E)))
            counts_AE = lax.all_gather(counts_E, axis)
            sizes_AA = counts_AE @ jnp.asarray(np.eye(self.geometry.sizes[axis], dtype=np.int32)[to_E])
            hops.append(Hop(order, _inverse(order), sizes_AA[None]))
            arriving_AE = jnp.where(jnp.asarray(to_E) == lax.axis_index(axis), counts_AE, 0)
            ends = jnp.cumsum(arriving_AE.reshape(-1))
            rows = jnp.arange(self.num_rows(hop + 1), dtype=jnp.int32)
            arrived = jnp.searchsorted(ends, rows, side="right").astype(jnp.int32) % number
            expert_R = jnp.where(rows < ends[-1], arrived, number)
        local = self.geometry.local
        mine_R = jnp.where(expert_R < number, expert_R % local, local)
        order, sizes_E = _sort(mine_R, np.arange(local))
        spare = grouped.spare(order.size, self.geometry.gpu)
        return Routes(tuple(hops), jnp.pad(order, (0, spare)), _inverse(order), sizes_E[None])

    def send(self, routes: Routes, x: jax.Array, per: int) -> jax.Array:
        """Rows of this device's experts, expert by expert, of x [tokens, ..] (per = top_k) or [pairs, ..] (per = 1)."""
        for number, (axis, hop) in enumerate(zip(self.axes, routes.hops, strict=True), 1):
            x = self._exchange(x[hop.order // per], self.num_rows(number), number, hop.sizes[0], axis)
            per = 1
        return x[routes.order // per]

    def bring(self, routes: Routes, rows: jax.Array) -> jax.Array:
        """[pairs, ..] from rows as `send` gives them: back where they came from; 0 for pairs that went nowhere."""
        # (behind the last expert's rows a product leaves anything)
        rows = only(routes.back < routes.sizes.sum(), rows[routes.back])
        for number, axis in reversed(list(enumerate(self.axes, 1))):
            hop = routes.hops[number - 1]
            rows = self._exchange(rows, self.num_rows(number - 1), number, hop.sizes[0].T, axis)
            rows = rows[hop.back]
        return rows

    def times(self, routes: Routes, x_RA: jax.Array, w_EAB: tuple[jax.Array, ...]) -> jax.Array:
        """[R, c, B]: each row times the c matrices of its expert."""
        return grouped.rows_times(x_RA, w_EAB, routes.sizes[0], self.geometry.gpu)

    def times_transposed(self, routes: Routes, x_RcB: jax.Array, w_EAB: tuple[jax.Array, ...]) -> jax.Array:
        """[R, A]: each row times the transposed matrices of its expert, added up over c."""
        return grouped.rows_times_transposed(x_RcB, w_EAB, routes.sizes[0], self.geometry.gpu)

    def outer(self, routes: Routes, x_RA: jax.Array, y_RcB: jax.Array) -> tuple[jax.Array, ...]:
        """The gradients of the c matrices [E, A, B], float32."""
        return grouped.outer(x_RA, y_RcB, routes.sizes[0], self.geometry.gpu)

    def _exchange(self, x: jax.Array, num_rows: int, hop: int, sizes_AA: jax.Array, axis: str) -> jax.Array:
        """The ragged all-to-all: sizes_AA[i, j] rows go from i to j, each device's rows stand by destination."""
        me = lax.axis_index(axis)
        sent, received = sizes_AA[me], sizes_AA[:, me]
        start = jnp.cumsum(sent) - sent
        if self.geometry.gpu:
            there = (jnp.cumsum(sizes_AA, axis=0) - sizes_AA)[me]  # where each receiver has what devices before me send
            empty = jnp.zeros((num_rows, *x.shape[1:]), x.dtype)
            return lax.ragged_all_to_all(x, empty, start, sent, there, received, axis_name=axis)
        most = self.num_rows(hop) // self.geometry.sizes[axis]  # rows from one device to another, at most
        place = jnp.arange(most)
        at = jnp.minimum(start[:, None] + place, x.shape[0] - 1)
        blocks = only(place < sent[:, None], x[at])
        blocks = lax.all_to_all(blocks, axis, 0, 0, tiled=True)
        ends, rows = jnp.cumsum(received), jnp.arange(num_rows)
        source = jnp.minimum(jnp.searchsorted(ends, rows, side="right"), len(ends) - 1)
        place = jnp.clip(rows - (ends - received)[source], 0, most - 1)
        return only(rows < ends[-1], blocks[source, place])


def _sort(key_R: jax.Array, order_E: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """(the rows by the place of their key in `order_E`, stable, rows of no key last; how many rows each key has)."""
    place_E = np.append(np.argsort(order_E), len(order_E)).astype(np.int32)
    place_R = jnp.asarray(place_E)[key_R]
    order = jnp.argsort(place_R, stable=True)
    edges = jnp.searchsorted(place_R[order], jnp.arange(len(order_E) + 1))
    return order, (edges[1:] - edges[:-1])[place_E[:-1]].astype(jnp.int32)


def _inverse(order: jax.Array) -> jax.Array:
    """The place of each row in a permutation."""
    return jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype), unique_indices=True)
