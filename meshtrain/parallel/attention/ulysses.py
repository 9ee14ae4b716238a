"""The schemes "ulysses" and "usp": heads are swapped for length, so that a device has more of a row and fewer heads.

    before    device i: part i of the row, all heads        one all-to-all each for queries, keys and values, and one
    after     device i: the whole row, part i of the heads  back for the output (DeepSpeed Ulysses, arXiv 2309.14509)

"usp" swaps over the last axis of the length, whose partners are the nearest, and has a ring over the axes before it
(arXiv 2405.07719): what comes together by the swap is one shard of the ring.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.layout.exchange import exchange_axes, heads_text
from meshtrain.parallel.attention.kernel import self_attention
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.ring import ring


def ulysses(
    q_BtnH: jax.Array, k_BtkH: jax.Array, v_BtkW: jax.Array, positions_Bt: jax.Array, segments_Bt: jax.Array,
    *, mask: Mask, kernel: str, place: Placement,
) -> jax.Array:  # fmt: skip
    """out_BtnW: attention of whole rows between two swaps. InputError where the swap does not divide the heads."""
    q, k, v, positions, segments = _swap_in(q_BtnH, k_BtkH, v_BtkW, positions_Bt, segments_Bt, place)
    return _swap_out(self_attention(q, k, v, positions, segments, mask, kernel, place), place)


def usp(
    q_BtnH: jax.Array, k_BtkH: jax.Array, v_BtkW: jax.Array, positions_Bt: jax.Array, segments_Bt: jax.Array,
    *, mask: Mask, kernel: str, place: Placement,
) -> jax.Array:  # fmt: skip
    """out_BtnW: a ring between two swaps. InputError where the swap does not divide the heads."""
    swapped = _swap_in(q_BtnH, k_BtkH, v_BtkW, positions_Bt, segments_Bt, place)
    return _swap_out(ring(*swapped, mask=mask, kernel=kernel, place=place), place)


def _swap_in(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, place: Placement
) -> tuple[jax.Array, ...]:
    """The same arrays with more of the row and fewer heads."""
    axes = exchange_axes(place).swap
    if not axes:
        return q, k, v, positions, segments
    num = place.size(axes)
    if problem := heads_text(place, q.shape[2], num):
        raise InputError(f"attention: {problem}")
    # Fewer key heads than devices: copies, of which each device gets the one of its queries. As many as make the number
    # of key heads a multiple of the devices; it then still divides the number of query heads, which is such a multiple.
    copies = num // math.gcd(num, k.shape[2])
    k, v = (jnp.repeat(x, copies, axis=2) if copies > 1 else x for x in (k, v))
    q, k, v = (lax.all_to_all(x, axes, split_axis=2, concat_axis=1, tiled=True) for x in (q, k, v))
    # Remat policies that keep queries, keys and values keep these, so that backward need not swap again; but no copies.
    q = checkpoint_name(q, "query")
    k, v = (checkpoint_name(x, name) if copies == 1 else x for x, name in ((k, "key"), (v, "value")))
    ids = lax.all_gather(jnp.stack([positions, segments]), axes, axis=2, tiled=True)
    return q, k, v, ids[0], ids[1]


def _swap_out(out: jax.Array, place: Placement) -> jax.Array:
    axes = exchange_axes(place).swap
    return lax.all_to_all(out, axes, split_axis=1, concat_axis=2, tiled=True) if axes else out
