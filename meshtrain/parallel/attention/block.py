"""Blockwise attention of one device's queries over one device's keys: forward, backward, and both as one function.

Keeps q, k, v, the output and its log-sum-exp for the backward pass; no array is larger than a block of queries times
the keys, so memory grows linearly with the length. Blocks that causal order, documents or the window leave empty are
not computed. Queries and keys have their own positions and segments: they may be of different shards and lengths.
Values may have another head size (W) than queries and keys (H), as in latent attention.

Up to SHORT keys the blocks of queries are unrolled, each over all keys up to its own last one; beyond, two loops go
over tiles, and the range of key tiles that a tile of queries needs is read from positions and segments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from meshtrain.parallel.attention import looped, unrolled
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.tile import Keys, Queries

SHORT = 512  # keys: up to here no loop over blocks
SCORES = 1 << 19  # scores held at a time, at least one block of one row: 2 MB of float32, the size of a core's cache

Sides = tuple[Queries, Keys]


def block_attention_forward(
    q_BTNH: Float[Array, "B T N H"],
    k_BSKH: Float[Array, "B S K H"],
    v_BSKW: Float[Array, "B S K W"],
    *,
    q_positions_BT: Int[Array, "B T"],
    k_positions_BS: Int[Array, "B S"],
    q_segments_BT: Int[Array, "B T"],
    k_segments_BS: Int[Array, "B S"],
    mask: Mask,
    causal_skip: bool = False,
    scores: int = SCORES,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T N W"], Float[Array, "B N T"]]:
    """(output, log-sum-exp). The output in `dtype` (default: q's), the log-sum-exp float32, EMPTY where no key is seen.

    causal_skip: query i and key i are the same token of the row, so that no key is seen before its index; it saves
    work and never changes the result. scores: how many scores to hold at a time (rows are taken one after the other
    to stay within it).
    """
    B, T, N, _ = q_BTNH.shape
    q_BKGTH, k_BKSH, v_BKSW = _query_heads(q_BTNH, k_BSKH.shape[2]), _key_heads(k_BSKH), _key_heads(v_BSKW)
    sides = Queries(q_positions_BT, q_segments_BT), Keys.of(k_positions_BS, k_segments_BS)
    short = k_BSKH.shape[1] <= SHORT
    forward = partial(unrolled.forward, causal_skip=causal_skip) if short else looped.forward

    def rows(q: jax.Array, k: jax.Array, v: jax.Array, sides: Sides) -> tuple[jax.Array, jax.Array]:
        out_BKGTW, lse_BKGT = forward(q, k, v, *sides, mask)
        return _token_major(out_BKGTW).astype(dtype or q.dtype), lse_BKGT.reshape(-1, N, T)

    num = _rows_at_a_time(B, N, T, k_BSKH.shape[1], scores)
    return _by_rows(rows, num, q_BKGTH, k_BKSH, v_BKSW, sides)


def block_attention_backward(
    q_BTNH: Float[Array, "B T N H"],
    k_BSKH: Float[Array, "B S K H"],
    v_BSKW: Float[Array, "B S K W"],
    out_BTNW: Float[Array, "B T N W"],
    lse_BNT: Float[Array, "B N T"],
    dout_BTNW: Float[Array, "B T N W"],
    *,
    q_positions_BT: Int[Array, "B T"],
    k_positions_BS: Int[Array, "B S"],
    q_segments_BT: Int[Array, "B T"],
    k_segments_BS: Int[Array, "B S"],
    mask: Mask,
    causal_skip: bool = False,
    scores: int = SCORES,
    dtype: DTypeLike | None = None,
) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K W"]]:
    """(dq, dk, dv) in `dtype` (default: that of q, k, v).

    `out` and `lse` are those of the queries over all their keys; the keys given here may be a part of them, and then
    the result is that part's share of dq, and its dk and dv.
    """
    B, T, N, _ = q_BTNH.shape
    K = k_BSKH.shape[2]
    delta_BTN = (dout_BTNW.astype(jnp.float32) * out_BTNW.astype(jnp.float32)).sum(-1)
    sides = Queries(q_positions_BT, q_segments_BT), Keys.of(k_positions_BS, k_segments_BS)
    short = k_BSKH.shape[1] <= SHORT
    backward = partial(unrolled.backward, causal_skip=causal_skip) if short else looped.backward

    def rows(q: Any, k: Any, v: Any, dout: Any, lse: Any, delta: Any, sides: Sides) -> tuple[jax.Array, ...]:
        dq, dk, dv = backward(q, k, v, dout, lse, delta, *sides, mask)
        return (
            _token_major(dq).astype(dtype or q.dtype),
            dk.swapaxes(1, 2).astype(dtype or k.dtype),
            dv.swapaxes(1, 2).astype(dtype or v.dtype),
        )

    return _by_rows(
        rows, _rows_at_a_time(B, N, T, k_BSKH.shape[1], scores),
        _query_heads(q_BTNH, K), _key_heads(k_BSKH), _key_heads(v_BSKW), _query_heads(dout_BTNW, K),
        lse_BNT.reshape(B, K, N // K, T), _query_heads(delta_BTN[..., None], K)[..., 0], sides,
    )  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(7, 8, 9))
def block_attention(
    q_BTNH: jax.Array,
    k_BSKH: jax.Array,
    v_BSKW: jax.Array,
    q_positions_BT: jax.Array,
    k_positions_BS: jax.Array,
    q_segments_BT: jax.Array,
    k_segments_BS: jax.Array,
    mask: Mask,
    causal_skip: bool = False,
    scores: int = SCORES,
) -> jax.Array:
    """The output of `block_attention_forward`, differentiable in q, k and v by `block_attention_backward`.

    For remat policies the output is named "attention_out" and its log-sum-exp "attention_lse": a policy that keeps
    both (and q, k, v) need not compute attention again.
    """
    given = (q_positions_BT, k_positions_BS, q_segments_BT, k_segments_BS)
    return _forward(q_BTNH, k_BSKH, v_BSKW, *given, mask, causal_skip, scores)[0]


def _named(positions_and_segments: tuple[jax.Array, ...]) -> dict[str, Any]:
    names = ("q_positions_BT", "k_positions_BS", "q_segments_BT", "k_segments_BS")
    return dict(zip(names, positions_and_segments, strict=True))


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, *rest: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    *given, mask, causal_skip, scores = rest
    out, lse = block_attention_forward(
        q, k, v, **_named(tuple(given)), mask=mask, causal_skip=causal_skip, scores=scores
    )
    out, lse = checkpoint_name(out, "attention_out"), checkpoint_name(lse, "attention_lse")
    return out, (q, k, v, out, lse, tuple(given))


def _backward(mask: Mask, causal_skip: bool, scores: int, kept: tuple[Any, ...], dout: jax.Array) -> tuple[Any, ...]:
    q, k, v, out, lse, given = kept
    options: dict[str, Any] = dict(mask=mask, causal_skip=causal_skip, scores=scores)
    grads = block_attention_backward(q, k, v, out, lse, dout, **_named(given), **options)
    return (*grads, None, None, None, None)


block_attention.defvjp(_forward, _backward)


def _query_heads(x_BTNH: jax.Array, num_kv_heads: int) -> jax.Array:
    """[B, T, N, H] -> [B, K, G, T, H]."""
    B, T, N, H = x_BTNH.shape
    return x_BTNH.reshape(B, T, num_kv_heads, N // num_kv_heads, H).transpose(0, 2, 3, 1, 4)


def _key_heads(x_BSKH: jax.Array) -> jax.Array:
    return x_BSKH.swapaxes(1, 2)


def _token_major(x_BKGTH: jax.Array) -> jax.Array:
    """[B, K, G, T, H] -> [B, T, N, H]."""
    B, K, G, T, H = x_BKGTH.shape
    return x_BKGTH.transpose(0, 3, 1, 2, 4).reshape(B, T, K * G, H)


def _rows_at_a_time(B: int, N: int, T: int, S: int, scores: int) -> int:
    """The most rows, a divisor of B, whose scores of one step are within `scores`; at least one row."""
    step = min(T, unrolled.QUERY_BLOCK) * S if S <= SHORT else looped.TILE_QUERIES * looped.TILE_KEYS
    return max(rows for rows in range(1, B + 1) if B % rows == 0 and (rows == 1 or rows * N * step <= scores))


def _by_rows(f: Callable[..., Any], rows: int, *arrays: Any) -> Any:
    """`f` over `rows` rows of the batch at a time, one group after the other."""
    B = jax.tree.leaves(arrays)[0].shape[0]
    if rows == B:
        return f(*arrays)
    groups = jax.tree.map(lambda x: x.reshape(B // rows, rows, *x.shape[1:]), arrays)
    found = lax.map(lambda group: f(*group), groups)
    return jax.tree.map(lambda x: x.reshape(B, *x.shape[2:]), found)
