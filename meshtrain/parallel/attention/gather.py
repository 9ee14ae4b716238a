"""The scheme "gather": each device collects the keys and values of all shards of the length, as Llama 3 was trained.

One all-gather, at once and not beside the compute, and the whole row's keys and values of one layer in memory. They are
kept by no device: backward collects them again and scatters the sum of their gradients, in float32.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from meshtrain.layout import Placement
from meshtrain.layout.exchange import exchange_axes
from meshtrain.layout.order import num_chunks
from meshtrain.parallel.attention.block import block_attention_backward, block_attention_forward
from meshtrain.parallel.attention.kernel import scores_at_a_time
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.ring import apart, named_ids, side_by_side


class Gathering(NamedTuple):
    """What does not change: the mask, the axes and the shards over them, chunks of a shard, the kernel's scores."""

    mask: Mask
    axes: tuple[str, ...]
    num_shards: int
    chunks: int
    scores: int


def gather(
    q_BtnH: jax.Array, k_BtkH: jax.Array, v_BtkW: jax.Array, positions_Bt: jax.Array, segments_Bt: jax.Array,
    *, mask: Mask, kernel: str, place: Placement,
) -> jax.Array:  # fmt: skip
    """out_BtnW of this device's queries over the keys of all shards."""
    how = Gathering(mask, exchange_axes(place).ring, *num_chunks(place), scores_at_a_time(place))
    return gathered_attention(q_BtnH, k_BtkH, v_BtkW, positions_Bt, segments_Bt, how)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def gathered_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, how: Gathering
) -> jax.Array:
    """The output in q's dtype, differentiable in q, k and v."""
    return _forward(q, k, v, positions, segments, how)[0]


def _forward(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, how: Gathering
) -> Any:
    ids = jnp.stack([positions, segments])
    key, value = apart(_collect(side_by_side(k, v), 1, how), k)
    out, lse = block_attention_forward(
        q, key, value, **named_ids(ids, _collect(ids, 2, how)), mask=how.mask, scores=how.scores
    )
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return out, (q, k, v, out, lse, ids)


def _backward(how: Gathering, kept: tuple[jax.Array, ...], dout: jax.Array) -> tuple[Any, ...]:
    q, k, v, out, lse, ids = kept
    key, value = apart(_collect(side_by_side(k, v), 1, how), k)
    dq, *dkv = block_attention_backward(
        q, key, value, out, lse, dout, **named_ids(ids, _collect(ids, 2, how)), mask=how.mask, scores=how.scores,
        dtype=jnp.float32,
    )  # fmt: skip
    dk, dv = apart(_scatter(side_by_side(*dkv), how), k)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


gathered_attention.defvjp(_forward, _backward)


def _collect(x: jax.Array, dim: int, how: Gathering) -> jax.Array:
    """[.., t, ..] of all shards, in the order of the row, so that a run of keys is what a tile of queries sees."""
    x = lax.all_gather(x, how.axes, axis=dim, tiled=True)
    if how.chunks == 1:
        return x
    by_shard = x.reshape(*x.shape[:dim], how.num_shards, 2, -1, *x.shape[dim + 1 :])
    early, late = (lax.index_in_dim(by_shard, half, dim + 1, keepdims=False) for half in (0, 1))
    return jnp.concatenate([early, jnp.flip(late, dim)], axis=dim).reshape(x.shape)


def _scatter(x: jax.Array, how: Gathering) -> jax.Array:
    """The sum over devices of [B, T, ..] in the order of the row, to each shard its own part."""
    if how.chunks == 2:
        chunks = x.reshape(x.shape[0], 2, how.num_shards, -1, *x.shape[2:])
        x = jnp.stack([chunks[:, 0], chunks[:, 1, ::-1]], axis=2).reshape(x.shape)
    return lax.psum_scatter(x, how.axes, scatter_dimension=1, tiled=True)
