"""Attention over many keys: a loop over tiles of queries, and inside it a loop over the key tiles that they can see.

Which key tiles those are is read from positions and segments, so that what causal order, documents, the window or
padding leave empty is skipped, whatever the order of the tokens. The program does not grow with the length.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.tile import EMPTY, Keys, Queries, merge, tile_backward, tile_forward

TILE_QUERIES, TILE_KEYS = 256, 256


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, queries: Queries, keys: Keys, mask: Mask
) -> tuple[jax.Array, jax.Array]:
    """(out_BKGTW, lse_BKGT), float32, of q_BKGTH, k_BKSH, v_BKSW."""
    T = q.shape[3]
    k, v, keys = _whole_tiles(k, v, keys)

    def queries_tile(tile: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, *side = tile
        here = Queries(*side)

        def keys_tile(j: jax.Array, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return merge(*found, *tile_forward(q, _tile(k, j, 2), _tile(v, j, 2), here, _side(keys, j), mask))

        seen = q.shape[:-1]
        empty = jnp.zeros((*seen, v.shape[-1]), jnp.float32), jnp.full(seen, EMPTY, jnp.float32)
        return lax.fori_loop(*needed_tiles(here, keys, mask), keys_tile, empty)

    out, lse = lax.map(queries_tile, (_split(q, 3), *(_split(x, 1) for x in queries)))
    return _join(out, 3, T), _join(lse, 3, T)


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, lse: jax.Array, delta: jax.Array,
    queries: Queries, keys: Keys, mask: Mask,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """(dq_BKGTH, dk_BKSH, dv_BKSW), float32, for dout_BKGTW, lse_BKGT, delta_BKGT."""
    T, S = q.shape[3], k.shape[2]
    k, v, keys = _whole_tiles(k, v, keys)
    k_BKHS = k.swapaxes(2, 3)
    B, K, G, _, H = q.shape

    def queries_tile(
        found: tuple[jax.Array, jax.Array], tile: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        q, dout, lse, delta, *side = tile
        here = Queries(*side)

        def keys_tile(j: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            dq, dk, dv = found
            more_dq, more_dk, more_dv = tile_backward(
                q, _tile(k, j, 2), _tile(k_BKHS, j, 3), _tile(v, j, 2), dout, lse, delta, here, _side(keys, j), mask
            )
            return dq + more_dq, _add_tile(dk, j, more_dk), _add_tile(dv, j, more_dv)

        empty = jnp.zeros((B, K, H, G, q.shape[3]), jnp.float32)
        dq, *found = lax.fori_loop(*needed_tiles(here, keys, mask), keys_tile, (empty, *found))
        return (found[0], found[1]), dq.transpose(0, 1, 3, 4, 2)

    tiles = (*(_split(x, 3) for x in (q, dout, lse, delta)), *(_split(x, 1) for x in queries))
    zeros = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    (dk, dv), dq = lax.scan(queries_tile, zeros, tiles)
    return _join(dq, 3, T), dk[:, :, :S], dv[:, :, :S]


def needed_tiles(queries: Queries, keys: Keys, mask: Mask) -> tuple[jax.Array, jax.Array]:
    """(first, end) of the tiles of keys, TILE_KEYS each, that hold every key which any of the queries can see."""
    real = queries.segments != 0
    most = jnp.iinfo(jnp.int32).max
    first_segment = jnp.where(real, queries.segments, most).min()
    last_segment = jnp.where(real, queries.segments, 0).max()
    first_position = jnp.where(real, queries.positions, most).min()
    last_position = jnp.where(real, queries.positions, 0).max()
    needed_BS = (keys.segments >= first_segment) & (keys.segments <= last_segment) & (keys.before < last_position)
    if mask.window is not None:
        needed_BS &= first_position - mask.window <= keys.before
    needed = needed_BS.any(0).reshape(-1, TILE_KEYS).any(1)
    index = jnp.arange(needed.size)
    end = jnp.where(needed, index + 1, 0).max()
    return jnp.minimum(jnp.where(needed, index, needed.size).min(), end), end


def _whole_tiles(k: jax.Array, v: jax.Array, keys: Keys) -> tuple[jax.Array, jax.Array, Keys]:
    """The keys padded to whole tiles with keys that nothing sees."""
    more = -k.shape[2] % TILE_KEYS
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, more), (0, 0))) for x in (k, v))
    return k, v, Keys(*(jnp.pad(x, ((0, 0), (0, more)), constant_values=-1) for x in keys))


def _split(x: jax.Array, axis: int) -> jax.Array:
    """[.., T, ..] -> [tiles, .., TILE_QUERIES, ..], padded with zeros: segment 0, which sees nothing."""
    more = -x.shape[axis] % TILE_QUERIES
    x = jnp.pad(x, [(0, more if i == axis else 0) for i in range(x.ndim)])
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, TILE_QUERIES, *x.shape[axis + 1 :]), axis, 0)


def _join(x: jax.Array, axis: int, size: int) -> jax.Array:
    """The inverse of `_split`: `size` rows of [tiles, .., TILE_QUERIES, ..]."""
    x = jnp.moveaxis(x, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, size, axis=axis)


def _tile(x: jax.Array, j: jax.Array, axis: int) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, j * TILE_KEYS, TILE_KEYS, axis)


def _side(keys: Keys, j: jax.Array) -> Keys:
    return Keys(*(_tile(x, j, 1) for x in keys))


def _add_tile(total: Any, j: jax.Array, more: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(total, _tile(total, j, 2) + more, j * TILE_KEYS, 2)
