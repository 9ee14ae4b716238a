"""`run_experts`: the MLPs of all experts on the tokens that chose them, under a layout.

    forward    send x | gate, up, activation, down | bring back, weigh, add up over a token's experts
    backward   send dy and the weights | the products of the MLP, transposed | bring back dx and the weights' gradients

The backward rule is written out: it keeps the rows that arrived and the products with gate and up (named "hidden" for
remat policies), and nothing that was brought back: a weight's gradient, dy . out, is taken at the expert as
(dy down^T) . hidden. Sums over devices that hold parts (experts' own axes, a cut hidden layer) come last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from meshtrain.layout import Placement
from meshtrain.parallel.attention.kernel import GPU
from meshtrain.parallel.experts.axes import ExpertAxes
from meshtrain.parallel.experts.dropless import Dropless
from meshtrain.parallel.experts.geometry import Geometry
from meshtrain.parallel.experts.slots import Slots
from meshtrain.parallel.shard import free_axes, on_shards, sum_over
from meshtrain.parallel.tokens import join_parts

INWARD, OUTWARD = ("expert", "expert_embed", "expert_mlp"), ("expert", "expert_mlp", "expert_embed")


@dataclass(frozen=True)
class ExpertMlp:
    """What is computed, all of it static. activate: [rows, products, F] -> [rows, F]; capacity: tokens of a row that an
    expert takes at most, or None."""

    num_experts: int
    top_k: int
    activate: Callable[[jax.Array], jax.Array]
    capacity: int | None


def run_experts(
    x_BTD: Float[Array, "B T D"],
    expert_BTk: Int[Array, "B T k"],
    weight_BTk: Float[Array, "B T k"],
    keep_BTk: Bool[Array, "B T k"],
    inward: tuple[Float[Array, "E D F"], ...],
    outward: Float[Array, "E F D"],
    mlp: ExpertMlp,
    place: Placement,
) -> Float[Array, "B T D"]:
    """sum over kept choices c of weight[c] * mlp of expert[c] (x), in x's dtype; 0 for tokens without any.

    inward: the weights of gate and up (or up alone) as they are stored, outward: that of down. weight is float32.
    With a capacity no more than that many pairs of a row and an expert may be kept.
    """
    y_BTD = _run(mlp, place.of_experts, x_BTD, expert_BTk, weight_BTk, keep_BTk, inward, outward)
    return place.constrain(y_BTD, "batch", "stream", "embed")


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _run(mlp: ExpertMlp, place: Placement, x: jax.Array, *rest: Any) -> jax.Array:
    return _forward(mlp, place, x, *rest)[0]


def _forward(
    mlp: ExpertMlp, place: Placement, x: jax.Array, expert: jax.Array, weight: jax.Array, keep: jax.Array,
    inward: tuple[jax.Array, ...], outward: jax.Array,
) -> tuple[jax.Array, tuple[Any, ...]]:  # fmt: skip
    axes = ExpertAxes.of(place, x.shape[1])
    scatters = _scatters(axes, place, x.shape[1])

    def shard(x: jax.Array, expert: jax.Array, weight: jax.Array, keep: jax.Array, ins: tuple, out: jax.Array) -> tuple:
        exchange = _exchange(mlp, place, axes, x.shape[:2])
        routes = exchange.route(expert.reshape(-1), keep.reshape(-1))
        rows = checkpoint_name(exchange.send(routes, x.reshape(-1, x.shape[-1]), mlp.top_k), "hidden")
        products = checkpoint_name(exchange.times(routes, rows, ins), "hidden")
        found = exchange.bring(routes, exchange.times(routes, mlp.activate(products), (out,))[:, 0])
        found = found.reshape(*expert.shape, -1).astype(jnp.float32)
        y = (found * weight[..., None]).sum(2).astype(x.dtype)
        return _sum_parts(y, axes, scatters, place), routes, rows, products

    results = on_shards(
        place, shard, _in_specs(axes, len(inward)),
        (_stream_spec(axes, scatters), axes.row_spec, axes.row_spec, _products_spec(axes)),
    )(x, expert, weight, keep, *_used(place, inward, outward))  # fmt: skip
    y, routes, rows, products = results
    return y, (weight, inward, outward, routes, rows, products)


def _backward(mlp: ExpertMlp, place: Placement, kept: tuple[Any, ...], dy: jax.Array) -> tuple[Any, ...]:
    weight, inward, outward, routes, rows, products = kept
    axes = ExpertAxes.of(place, dy.shape[1])
    scatters = _scatters(axes, place, dy.shape[1])

    def shard(
        dy: jax.Array, weight: jax.Array, ins: tuple, out: jax.Array, routes: Any, rows: jax.Array, products: jax.Array
    ) -> tuple:
        exchange = _exchange(mlp, place, axes, dy.shape[:2])
        dy_rows = exchange.send(routes, dy.reshape(-1, dy.shape[-1]), mlp.top_k)
        weight_rows = exchange.send(routes, weight.reshape(-1, 1), 1)
        hidden, pull = jax.vjp(mlp.activate, products)
        dhidden = exchange.times_transposed(routes, dy_rows[:, None], (out,)).astype(jnp.float32)
        dweight = (dhidden * hidden.astype(jnp.float32)).sum(1, keepdims=True)
        (dproducts,) = pull((dhidden * weight_rows).astype(hidden.dtype))
        weighed = (hidden.astype(jnp.float32) * weight_rows).astype(hidden.dtype)
        (dout,) = exchange.outer(routes, weighed, dy_rows[:, None])
        dins = exchange.outer(routes, rows, dproducts)
        drows = exchange.times_transposed(routes, dproducts, ins)
        dx = exchange.bring(routes, drows).reshape(*weight.shape, -1).astype(jnp.float32).sum(2).astype(dy.dtype)
        dweight = exchange.bring(routes, dweight).reshape(weight.shape)
        dweight = lax.psum(dweight, axes.summed) if axes.summed else dweight
        return _sum_parts(dx, axes, scatters, place), dweight, tuple(d[None] for d in dins), dout[None]

    token = axes.token_spec
    ins_spec, out_spec = _weight_specs(axes)
    part = (axes.copies or None,)
    results = on_shards(
        place, shard,
        (token, token, (ins_spec,) * len(inward), out_spec, axes.row_spec, axes.row_spec, _products_spec(axes)),
        (_stream_spec(axes, scatters), token, (P(*part, *ins_spec),) * len(inward), P(*part, *out_spec)),
    )(dy, weight, *_used(place, inward, outward), routes, rows, products)  # fmt: skip
    dx, dweight, dins, dout = results
    _, split = jax.vjp(lambda ins, out: _used(place, ins, out), inward, outward)
    # Rounded first, so that the sum over the copies travels in the dtype of all other matrices' gradients.
    dinward, doutward = split((tuple(join_parts(d.astype(w.dtype)) for d, w in zip(dins, inward, strict=True)),
                               join_parts(dout.astype(outward.dtype))))  # fmt: skip
    return dx, None, dweight, None, dinward, doutward


_run.defvjp(_forward, _backward)


def _exchange(mlp: ExpertMlp, place: Placement, axes: ExpertAxes, shape: tuple[int, ...]) -> Any:
    """How this device's tokens reach their experts; inside a shard."""
    gpu = place.platform in GPU
    b, t = shape
    geometry = Geometry.of(place, axes, (b, t), mlp.num_experts, mlp.top_k, mlp.capacity, gpu)
    return Dropless(geometry) if geometry.slots is None else Slots(geometry)


def _used(
    place: Placement, inward: tuple[jax.Array, ...], outward: jax.Array
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    """The weights gathered over the axes that only store them."""
    return tuple(place.at_use(w, *INWARD) for w in inward), place.at_use(outward, *OUTWARD)


def _weight_specs(axes: ExpertAxes) -> tuple[P, P]:
    return P(axes.expert or None, None, axes.mlp or None), P(axes.expert or None, axes.mlp or None, None)


def _in_specs(axes: ExpertAxes, num: int) -> tuple[Any, ...]:
    ins_spec, out_spec = _weight_specs(axes)
    return (*[axes.token_spec] * 4, (ins_spec,) * num, out_spec)


def _products_spec(axes: ExpertAxes) -> P:
    """[devices x rows, products, F]."""
    return P(*axes.row_spec, None, axes.mlp or None)


def _scatters(axes: ExpertAxes, place: Placement, T: int) -> bool:
    """Whether the residual stream is cut by the axes over which results are summed, behind those of the length."""
    return (
        bool(axes.summed)
        and free_axes(place, "stream") == axes.length + axes.summed
        and (T % place.size(axes.length + axes.summed) == 0)
    )


def _stream_spec(axes: ExpertAxes, scatters: bool) -> P:
    return P(axes.batch or None, (axes.length + axes.summed * scatters) or None)


def _sum_parts(y: jax.Array, axes: ExpertAxes, scatters: bool, place: Placement) -> jax.Array:
    """In a shard: the sum of all parts of [B, T, D], in the spec of `_stream_spec`."""
    if scatters:
        return sum_over(y, axes.summed, place, scatter=1)
    return sum_over(y, axes.summed, place) if axes.summed else y
