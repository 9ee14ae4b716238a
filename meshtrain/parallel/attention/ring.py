"""The scheme "ring": keys and values go round the devices that share a row, and each step merges what it adds.

    device     0    1    2    3         the keys that a device holds in each step; it sends them on to its right
    step 0     k0   k1   k2   k3        neighbour before it computes with them, so that the exchange runs beside the
    step 1     k3   k0   k1   k2        compute. What the mask leaves empty is in no step's table (schedule.py).

Outputs, log-sum-exps and all gradients are float32 from the first step to the last: rounding does not grow with the
ring. Forward keeps q, k, v, the output and its log-sum-exp; backward goes round again, and the gradients of keys and
values travel with them. Devices differ in what they compute, never in what they send.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from meshtrain.layout import Placement
from meshtrain.layout.exchange import exchange_axes
from meshtrain.layout.order import num_chunks
from meshtrain.parallel.attention.block import block_attention_backward, block_attention_forward
from meshtrain.parallel.attention.kernel import scores_at_a_time
from meshtrain.parallel.attention.march import March, Meeting, walk
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.attention.schedule import ring_schedule
from meshtrain.parallel.attention.tile import merge


class Side(NamedTuple):
    """What goes round together: keys and values side by side [B, t, K, H + W], positions and segments [2, B, t]."""

    kv: jax.Array
    ids: jax.Array


@dataclass(frozen=True)
class Ring:
    """What does not change along the way: the mask, the march, and how many scores the kernel holds at a time."""

    mask: Mask
    march: March
    scores: int


def ring(
    q_BtnH: jax.Array, k_BtkH: jax.Array, v_BtkW: jax.Array, positions_Bt: jax.Array, segments_Bt: jax.Array,
    *, mask: Mask, kernel: str, place: Placement,
) -> jax.Array:  # fmt: skip
    """out_BtnW of this device's queries over the keys of all devices of its ring."""
    axes = exchange_axes(place).ring
    num_shards, chunks = num_chunks(place)
    schedule = ring_schedule(num_shards, chunks, num_shards * q_BtnH.shape[1], mask.window)
    going = Ring(mask, March(schedule, axes, tuple(place.axis_sizes.items())), scores_at_a_time(place))
    return ring_attention(q_BtnH, k_BtkH, v_BtkW, positions_Bt, segments_Bt, going)


@partial(jax.custom_vjp, nondiff_argnums=(5,))
def ring_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, ring: Ring
) -> jax.Array:
    """The output in q's dtype, differentiable in q, k and v."""
    return _forward(q, k, v, positions, segments, ring)[0]


def ring_forward(
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, ring: Ring
) -> tuple[jax.Array, jax.Array]:
    """(out_BtNW, lse_BtN), float32, over all keys that go round."""
    ids = jnp.stack([positions, segments])
    own = Side(side_by_side(k, v), ids)
    cut, queries, query_ids = ring.march.cut, ring.march.cut(q, 1), ring.march.cut(ids, 2)

    def local() -> tuple[jax.Array, jax.Array]:
        out, lse = block_attention_forward(
            q, k, v, **named_ids(ids, ids), mask=ring.mask, causal_skip=True, scores=ring.scores, dtype=jnp.float32
        )
        return cut(out, 1), cut(lse.swapaxes(1, 2), 1)

    def meet(found: tuple[jax.Array, jax.Array], held: Side, at: Meeting) -> tuple[jax.Array, jax.Array]:
        (key, value), key_ids = apart(at.keys(cut(held.kv, 1), 1), k), at.keys(cut(held.ids, 2), 2)
        more, more_lse = block_attention_forward(
            at.queries(queries, 1), key, value, **named_ids(at.queries(query_ids, 2), key_ids), mask=ring.mask,
            scores=ring.scores, dtype=jnp.float32,
        )  # fmt: skip
        out, lse = (at.queries(x, 1) for x in found)
        merged = merge(out, lse, more, more_lse.swapaxes(1, 2))
        return at.put(found[0], merged[0]), at.put(found[1], merged[1])

    def step(found: tuple[jax.Array, jax.Array], held: Side, meetings: list[Meeting], _: Any) -> Any:
        for at in meetings:
            found = at.unless_idle(partial(meet, held=held, at=at), found)
        return found

    out, lse = walk(ring.march, own, local, step)
    return out.reshape(*q.shape[:3], -1), lse.reshape(q.shape[:3])


def ring_backward(
    q: jax.Array, k: jax.Array, v: jax.Array, out: jax.Array, lse: jax.Array, positions: jax.Array,
    segments: jax.Array, dout: jax.Array, ring: Ring,
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """(dq, dk, dv), float32: the gradients of this device's own queries, keys and values from all devices."""
    ids = jnp.stack([positions, segments])
    own = Side(side_by_side(k, v), ids)
    cut = ring.march.cut
    queries, outs, douts, lses = (cut(x, 1) for x in (q, out, dout, lse))
    query_ids = cut(ids, 2)
    options: dict[str, Any] = dict(mask=ring.mask, scores=ring.scores, dtype=jnp.float32)

    def local() -> tuple[jax.Array, jax.Array]:
        grads = block_attention_backward(
            q, k, v, out, lse.swapaxes(1, 2), dout, **named_ids(ids, ids), causal_skip=True, **options
        )
        return cut(grads[0], 1), cut(side_by_side(*grads[1:]), 1)

    def meet(found: tuple[jax.Array, jax.Array], held: Side, at: Meeting) -> tuple[jax.Array, jax.Array]:
        (key, value), key_ids = apart(at.keys(cut(held.kv, 1), 1), k), at.keys(cut(held.ids, 2), 2)
        more, *more_kv = block_attention_backward(
            at.queries(queries, 1), key, value, at.queries(outs, 1), at.queries(lses, 1).swapaxes(1, 2),
            at.queries(douts, 1), **named_ids(at.queries(query_ids, 2), key_ids), **options,
        )  # fmt: skip
        dq, dkv = found
        return at.put(dq, at.queries(dq, 1) + more), at.put_keys(dkv, at.keys(dkv, 1) + side_by_side(*more_kv))

    def step(
        found: tuple[jax.Array, jax.Array], held: Side, meetings: list[Meeting], send: Callable[[Any], Any]
    ) -> tuple[jax.Array, jax.Array]:
        dq, dkv = found
        arrived = send(dkv)  # beside this step's compute, which starts from zero
        added = dq, jnp.zeros_like(dkv)
        for at in meetings:
            added = at.unless_idle(partial(meet, held=held, at=at), added)
        return added[0], arrived + added[1]

    dq, dkv = walk(ring.march, own, local, step)
    dk, dv = apart(ring.march.home(dkv), k)
    return dq.reshape(q.shape), dk.reshape(k.shape), dv.reshape(v.shape)


def side_by_side(k: jax.Array, v: jax.Array) -> jax.Array:
    """Keys and values as one array [.., H + W], so that both travel in one exchange whatever their head sizes."""
    return jnp.concatenate([k, v], axis=-1)


def apart(kv: jax.Array, k: jax.Array) -> list[jax.Array]:
    """Keys, of k's head size, and values again."""
    return jnp.split(kv, [k.shape[-1]], axis=-1)


def named_ids(queries: jax.Array, keys: jax.Array) -> dict[str, Any]:
    """Positions and segments [2, B, T] of both sides as the kernel takes them."""
    return dict(
        q_positions_BT=queries[0], q_segments_BT=queries[1], k_positions_BS=keys[0], k_segments_BS=keys[1]
    )  # fmt: skip


def _forward(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, segments: jax.Array, ring: Ring) -> Any:
    out, lse = ring_forward(q, k, v, positions, segments, ring)
    out, lse = checkpoint_name(out.astype(q.dtype), "attention_out"), checkpoint_name(lse, "attention_lse")
    return out, (q, k, v, out, lse, positions, segments)


def _backward(ring: Ring, kept: tuple[jax.Array, ...], dout: jax.Array) -> tuple[Any, ...]:
    q, k, v, out, lse, positions, segments = kept
    dq, dk, dv = ring_backward(q, k, v, out, lse, positions, segments, dout, ring)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


ring_attention.defvjp(_forward, _backward)
