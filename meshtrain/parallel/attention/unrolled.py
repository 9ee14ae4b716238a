"""Attention over few keys: the blocks of queries unrolled, each over all the keys that it can see by index alone."""

from typing import Any

import jax
import jax.numpy as jnp

from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.tile import Keys, Queries, tile_backward, tile_forward

QUERY_BLOCK = 128  # queries of a block


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, queries: Queries, keys: Keys, mask: Mask, causal_skip: bool
) -> tuple[jax.Array, jax.Array]:
    """(out_BKGTW, lse_BKGT), float32, of q_BKGTH, k_BKSH, v_BKSW."""
    found = [
        tile_forward(q[:, :, :, t], k[:, :, s], v[:, :, s], _at(queries, t), _at(keys, s), mask)
        for t, s in _blocks(q.shape[3], k.shape[2], causal_skip)
    ]
    return jnp.concatenate([out for out, _ in found], 3), jnp.concatenate([lse for _, lse in found], 3)


def backward(
    q: jax.Array, k: jax.Array, v: jax.Array, dout: jax.Array, lse: jax.Array, delta: jax.Array,
    queries: Queries, keys: Keys, mask: Mask, causal_skip: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """(dq_BKGTH, dk_BKSH, dv_BKSW), float32, for dout_BKGTW, lse_BKGT, delta_BKGT."""
    k_BKHS = k.swapaxes(2, 3)
    dqs: list[jax.Array] = []
    dk, dv = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32)
    # From the last block, which sees the most keys, to the first: each adds to the first rows of what is there.
    for t, s in reversed(_blocks(q.shape[3], k.shape[2], causal_skip)):
        dq, more_dk, more_dv = tile_backward(
            q[:, :, :, t], k[:, :, s], k_BKHS[..., s], v[:, :, s], dout[:, :, :, t],
            lse[..., t], delta[..., t], _at(queries, t), _at(keys, s), mask,
        )  # fmt: skip
        dqs.append(dq)
        dk, dv = _add_rows(dk, more_dk), _add_rows(dv, more_dv)
    num_left = k.shape[2] - dk.shape[2]  # keys that no block saw: more keys than queries
    dk, dv = (jnp.pad(x, ((0, 0), (0, 0), (0, num_left), (0, 0))) for x in (dk, dv))
    return jnp.concatenate(dqs[::-1], 4).transpose(0, 1, 3, 4, 2), dk, dv


def _blocks(T: int, S: int, causal_skip: bool) -> list[tuple[slice, slice]]:
    """(queries, keys) of each block."""
    edges = [(start, min(start + QUERY_BLOCK, T)) for start in range(0, T, QUERY_BLOCK)]
    return [(slice(start, end), slice(0, min(end, S) if causal_skip else S)) for start, end in edges]


def _at(side: Any, where: slice) -> Any:
    return type(side)(*(x[:, where] for x in side))


def _add_rows(total: jax.Array, more: jax.Array) -> jax.Array:
    """`total` with `more` added to its first rows; `more` itself where there is no total yet."""
    if total.ndim == 0:
        return more
    num = more.shape[2]
    return jnp.concatenate([total[:, :, :num] + more, total[:, :, num:]], 2)
