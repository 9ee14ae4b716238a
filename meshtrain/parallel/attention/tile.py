"""Attention of one block of queries over one block of keys, forward and backward, with float32 statistics.

The arrays are head-major, so that every product is a batch of plain matrices: q_BKGTH holds the G query heads that
share key head K. Values, v_BKSW, may have another head size. Forward gives the block's own normalised output and
log-sum-exp; `merge` joins those of two sets of keys. A query that sees no key of the block has output 0, log-sum-exp
EMPTY and gradient 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshtrain.parallel.attention.mask import Mask

EMPTY = -1e30  # the log-sum-exp over no keys, and the score of a hidden key: finite, so that no NaN can arise
FLOOR = -1e29  # a largest score below this means that no key was visible


class Queries(NamedTuple):
    """Where each query stands: its position in its document, and its document (0: padding). Integers [B, T]."""

    positions: jax.Array
    segments: jax.Array


class Keys(NamedTuple):
    """Where each key stands, as the mask asks for it. Integers [B, S].

    `before` is the position less 1, `segments` has -1 for padding: a key is seen where the segments are equal and
    before < position. Not the queries' own arrays also because XLA's CPU compiler (JAX 0.10) makes a scalar loop,
    eight times slower, of a fusion that reads one array along two dimensions.
    """

    before: jax.Array
    segments: jax.Array

    @classmethod
    def of(cls, positions: jax.Array, segments: jax.Array) -> "Keys":
        """From positions and segments as they are in a batch."""
        return cls(positions - 1, jnp.where(segments == 0, -1, segments))


def tile_forward(
    q_BKGTH: jax.Array, k_BKSH: jax.Array, v_BKSW: jax.Array, queries: Queries, keys: Keys, mask: Mask
) -> tuple[jax.Array, jax.Array]:
    """(out_BKGTW, lse_BKGT), float32, of these queries over these keys alone."""
    B, K, G, T, H = q_BKGTH.shape
    S = k_BKSH.shape[2]
    s = _dot("bkmh,bksh->bkms", q_BKGTH.reshape(B, K, G * T, H), k_BKSH).reshape(B, K, G, T, S)
    seen_BTS = _seen(_column(queries), _row(keys), mask)
    s = jnp.where(seen_BTS[:, None, None], _cap(s * mask.scale, mask), EMPTY)
    largest = jnp.maximum(s.max(-1), FLOOR)
    p = jnp.exp(s - largest[..., None])
    total = p.sum(-1)
    out = _dot("bkms,bksw->bkmw", p.astype(v_BKSW.dtype).reshape(B, K, G * T, S), v_BKSW).reshape(B, K, G, T, -1)
    some = total > 0
    total = jnp.where(some, total, 1)
    return out / total[..., None], jnp.where(some, largest + jnp.log(total), EMPTY)


def tile_backward(
    q_BKGTH: jax.Array,
    k_BKSH: jax.Array,
    k_BKHS: jax.Array,
    v_BKSW: jax.Array,
    dout_BKGTW: jax.Array,
    lse_BKGT: jax.Array,
    delta_BKGT: jax.Array,
    queries: Queries,
    keys: Keys,
    mask: Mask,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(dq_BKHGT, dk_BKSH, dv_BKSW), float32: what this block adds to each.

    `lse` is over all keys of the query, `delta` is sum(dout * out) of the whole output (FlashAttention-2, section 3.1,
    arXiv 2307.08691). Scores are built key-major, so that the two products for dk and dv read them row by row; the
    third takes the transposed copy of k and leaves dq transposed.
    """
    B, K, G, T, H = q_BKGTH.shape
    S = k_BKSH.shape[2]
    q, dout = q_BKGTH.reshape(B, K, G * T, H), dout_BKGTW.reshape(B, K, G * T, -1)
    s = _cap(_dot("bksh,bkmh->bksm", k_BKSH, q).reshape(B, K, S, G, T) * mask.scale, mask)
    seen_BST = _seen(_row(queries), _column(keys), mask)
    lse = jnp.where(lse_BKGT > FLOOR, lse_BKGT, 0)[:, :, None]
    p = jnp.exp(jnp.where(seen_BST[:, None, :, None], s, EMPTY) - lse)
    dp = _dot("bksw,bkmw->bksm", v_BKSW, dout).reshape(B, K, S, G, T)
    ds = p * (dp - delta_BKGT[:, :, None])
    if mask.softcap is not None:
        ds = ds * (1 - jnp.square(s / mask.softcap))
    p, ds = (x.astype(q.dtype).reshape(B, K, S, G * T) for x in (p, ds))
    dv = _dot("bksm,bkmw->bksw", p, dout)
    dk = _dot("bksm,bkmh->bksh", ds, q)
    dq = _dot("bkhs,bksm->bkhm", k_BKHS, ds).reshape(B, K, H, G, T)
    return dq * mask.scale, dk * mask.scale, dv


def merge(out: jax.Array, lse: jax.Array, more_out: jax.Array, more_lse: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Output and log-sum-exp over the keys of both: float32 [..., W] and [...]. Both EMPTY stays 0 and EMPTY."""
    largest = jnp.maximum(lse, more_lse)
    weight, more = jnp.exp(lse - largest), jnp.exp(more_lse - largest)
    total = weight + more
    out = out * (weight / total)[..., None] + more_out * (more / total)[..., None]
    return out, largest + jnp.log(total)


def _dot(equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


def _cap(s: jax.Array, mask: Mask) -> jax.Array:
    return s if mask.softcap is None else mask.softcap * jnp.tanh(s / mask.softcap)


def _column(side: Queries | Keys) -> tuple[jax.Array, jax.Array]:
    return side[0][:, :, None], side[1][:, :, None]


def _row(side: Queries | Keys) -> tuple[jax.Array, jax.Array]:
    return side[0][:, None], side[1][:, None]


def _seen(queries: tuple[jax.Array, jax.Array], keys: tuple[jax.Array, jax.Array], mask: Mask) -> jax.Array:
    """`mask.visible`, for either order of the last two dims."""
    (position, segment), (before, key_segment) = queries, keys
    seen = (segment == key_segment) & (before < position)
    return seen if mask.window is None else seen & (position - before <= mask.window)
