"""`attend`: attention of whole arrays under a layout, by the exchange that the layout names.

Batch, length and heads are cut as the layout says, and each device calls the scheme with its slices. Where there are
fewer key heads than shards of the query heads, each device picks the key heads of its own queries.
"""

from collections.abc import Callable

import jax
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from meshtrain.errors import InputError, nearest
from meshtrain.layout import Placement
from meshtrain.parallel.attention.gather import gather
from meshtrain.parallel.attention.kernel import choose_kernel
from meshtrain.parallel.attention.local import check_local, local
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.ring import ring
from meshtrain.parallel.attention.ulysses import ulysses, usp
from meshtrain.parallel.shard import free_axes, on_shards, shard_index

# layout.attention -> the scheme: a function of one device's slices (q, k, v, positions, segments; mask, kernel, place).
SCHEMES: dict[str, Callable[..., jax.Array]] = {
    "local": local, "gather": gather, "ring": ring, "ulysses": ulysses, "usp": usp,
}  # fmt: skip


def attend(
    q_BTNH: Float[Array, "B T N H"],
    k_BSKH: Float[Array, "B S K H"],
    v_BSKW: Float[Array, "B S K W"],
    *,
    positions_BT: Int[Array, "B T"],
    segments_BT: Int[Array, "B T"],
    mask: Mask,
    place: Placement,
    kernel: str = "auto",
) -> Float[Array, "B T N W"]:
    """Softmax attention of each query over the keys that `mask` lets it see, float32 statistics, output in q's dtype.

    Query head n uses key head n // (N / K). Values may have another head size than queries and keys (W, H). A query of
    segment 0 gives exactly 0 (cuDNN's kernel: anything finite). InputError where dims do not divide, where the scheme
    cannot serve the layout, or where the kernel asked for ("cudnn") cannot honour mask or platform.
    """
    scheme = SCHEMES.get(place.layout.attention)
    if scheme is None:
        name = place.layout.attention
        raise InputError(f"attention: there is no {name!r}.{nearest(name, SCHEMES)} One of: {' '.join(SCHEMES)}.")
    if scheme is local:
        check_local(place, [name for name in SCHEMES if name != "local"])
    # (raises what does not divide)
    place.spec_here("activations", ("batch", "length", "heads", "head_dim"), q_BTNH.shape)
    place.spec_here("activations", ("batch", "length", "kv_heads", "head_dim"), k_BSKH.shape)
    kernel = choose_kernel(kernel, mask, place, q_BTNH.dtype, (q_BTNH.shape[-1], v_BSKW.shape[-1]))

    batch, length, heads = (free_axes(place, dim) or None for dim in ("batch", "length", "heads"))
    kv_heads = _kv_axes(heads or (), k_BSKH.shape[2], place)
    rows, q_spec = PartitionSpec(batch, length), PartitionSpec(batch, length, heads)
    kv_spec = PartitionSpec(batch, length, kv_heads or None)

    def shard(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        group = q_BTNH.shape[2] // k_BSKH.shape[2]
        k, v = (_own_key_heads(x, q.shape[2], group, heads or (), kv_heads) for x in (k, v))
        return scheme(q, k, v, positions, segments, mask=mask, kernel=kernel, place=place)

    return on_shards(place, shard, (q_spec, kv_spec, kv_spec, rows, rows), q_spec)(
        q_BTNH, k_BSKH, v_BSKW, positions_BT, segments_BT
    )


def _kv_axes(heads: tuple[str, ...], num_kv_heads: int, place: Placement) -> tuple[str, ...]:
    """The axes that cut the key heads: those of the query heads, the fastest left out while they do not divide."""
    axes = heads
    while num_kv_heads % place.size(axes):
        axes = axes[:-1]
    if place.size(heads) % num_kv_heads and axes != heads:
        raise InputError(
            f"rules.heads: {place.text(heads)} cuts the query heads into {place.size(heads)} parts, of which some would"
            f" need more than one of the {num_kv_heads} key heads. {num_kv_heads} parts, or a multiple of it, would"
            " work."
        )
    return axes


def _own_key_heads(
    k_BSKH: jax.Array, num_heads: int, group: int, heads: tuple[str, ...], kv_heads: tuple[str, ...]
) -> jax.Array:
    """The key heads of this device's query heads, of those that it was given."""
    if heads == kv_heads:
        return k_BSKH
    first = shard_index(heads) * num_heads // group - shard_index(kv_heads) * k_BSKH.shape[2]
    return lax.dynamic_slice_in_dim(k_BSKH, first, max(num_heads // group, 1), 2)
