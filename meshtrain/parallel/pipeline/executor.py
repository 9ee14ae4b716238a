"""Runs a plan: a scan over ticks inside a shard_map over the stage axis; axes that cut more than tokens stay with
the compiler, those that cut tokens alone come along, so that gradients are reduced over them once a step.

Which kinds of op a tick holds is the same on all stages, so no device takes another way around a permute than its
partner. A run of ticks with the same kinds is one scan whose body has just these. On CPU devices the ops of a tick run
one by one, see `Worker.one_by_one`.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from meshtrain.layout import ArraySpec, Placement, Tree, map_specs
from meshtrain.parallel.pipeline.plan import IDLE, Plan
from meshtrain.parallel.pipeline.share import TokenShare, inner_placement, token_share
from meshtrain.parallel.pipeline.worker import Batch, Carry, Stages, Worker
from meshtrain.parallel.rows import own_specs, part_spec
from meshtrain.parallel.shard import spec_without

MAX_SCANS = 4  # runs of ticks with the same kinds of op; where a plan has more, one scan asks at each tick


def gradients(
    stages: Stages,
    layers: Tree,
    rest: Tree,
    batch_MB: Batch,
    plan: Plan,
    place: Placement,
    layer_ids: np.ndarray,
    specs: Tree = None,
) -> tuple[Tree, Tree, Tree]:
    """(sums by microbatch, gradient of `layers`, gradient of `rest`), float32, of the sum of all microbatches' losses.
    Of stages whose layers tell something: (sums by microbatch, what is told [stages x chunks x layers, ..], of all).

    layers: arrays [stages x chunks x layers of a piece, ...], stage by stage, cut over the stage axis; batch_MB: arrays
    [microbatch, batch, ...]; layer_ids: int [stage, chunk, layer]. `stages` are made for `inner_placement(place)`.
    specs: ArraySpec of all weights (those of the layers under "layers"), by which sums of gradients are placed.
    """
    return _on_stages(stages, layers, rest, batch_MB, plan, place, layer_ids, specs, trains=True)


def forward_sums(
    stages: Stages, layers: Tree, rest: Tree, batch_MB: Batch, plan: Plan, place: Placement, layer_ids: np.ndarray,
    specs: Tree = None,
) -> Tree:  # fmt: skip
    """The sums by microbatch alone, by a plan of forward passes. specs: as in `gradients`."""
    return _on_stages(stages, layers, rest, batch_MB, plan, place, layer_ids, specs, trains=False)[0]


def _on_stages(
    stages: Stages, layers: Tree, rest: Tree, batch_MB: Batch, plan: Plan, place: Placement, layer_ids: np.ndarray,
    specs: Tree, trains: bool,
) -> tuple[Tree, Tree, Tree]:  # fmt: skip
    """The shard_map: each stage its own layers, its own column of the plan, and its tokens of every microbatch."""
    (axis,), share = place.layout.rules.axes("layers"), token_share(place, stages.told)
    own = share.axes
    cut, whole, column = P(axis), P(), P(None, axis)
    of_weights = cut if specs is None else _layer_specs(place, share, axis, specs["layers"])

    def stage(layers: Tree, rest: Tree, batch_MB: Batch, ids: jax.Array, columns: dict[str, jax.Array]) -> tuple:
        local = jax.tree.map(lambda w: w.reshape(plan.num_chunks, -1, *w.shape[1:]), layers)
        columns = {name: value[:, 0] for name, value in columns.items()}
        worker = Worker(stages, local, rest, batch_MB, ids[0], plan, inner_placement(place), axis, specs)
        carry = _run_ticks(worker, worker.start(trains), columns)
        sums = jax.lax.psum(carry.sums, (axis, *own))
        if stages.told:
            told = jax.tree.map(lambda s: s.reshape(-1, *s.shape[2:]), carry.told)
            sums = (sums, jax.lax.psum(told, own) if own else told)
        if not trains:
            return sums, None, None
        of_layers = jax.tree.map(lambda g: g.reshape(1, -1, *g.shape[2:]), carry.layers)
        return sums, of_layers, jax.tree.map(lambda g: g[None, None], carry.rest)

    of_sums = (whole, cut) if stages.told else whole
    of_parts = jax.tree.map(partial(part_spec, own), of_weights, is_leaf=lambda x: isinstance(x, P))
    outs = (of_sums, of_parts, P(axis, own or None)) if trains else (of_sums, whole, whole)
    mapped = jax.shard_map(
        stage, mesh=place.mesh, in_specs=(of_weights, whole, _token_specs(batch_MB, share), cut, column),
        out_specs=outs, axis_names={axis, *own}, check_vma=False,
    )  # fmt: skip
    columns = {name: jnp.asarray(value) for name, value in plan.arrays.items()}
    columns["stage"] = jnp.broadcast_to(jnp.arange(plan.num_stages, dtype=jnp.int32), plan.f_x.shape)
    sums, *parts = mapped(layers, rest, batch_MB, jnp.asarray(layer_ids, jnp.int32), columns)
    if not trains:
        return sums, None, None
    # Each device's part of a sum stands in a dim of its own: the compiler joins them where the gradient is to lie, as a
    # reduce-scatter to ZeRO's rows or as an all-reduce.
    return sums, jax.tree.map(lambda g: g.sum(0), parts[0]), _join_rest(parts[1], specs, place, axis)


def _join_rest(rest: Tree, specs: Tree, place: Placement, axis: str) -> Tree:
    """The sum of the parts [stages, devices of a stage, ...] of what stands outside the layers. Where the optimizer's
    rows cut an array over the devices of a stage it is scattered there first, and what each keeps is then summed over
    the stages; all at once would be an all-reduce of the whole, cut afterwards."""
    own = token_share(place, experts=False).axes

    def join(spec: ArraySpec, parts: jax.Array) -> jax.Array:
        rows = spec_without(place.spec("optimizer", spec.dims, spec.shape), (axis,))
        if rows == spec_without(rows, own):
            return parts.sum((0, 1))
        kept = jax.lax.with_sharding_constraint(parts.sum(1), NamedSharding(place.mesh, P(axis, *rows)))
        return kept.sum(0)

    if specs is None:
        return jax.tree.map(lambda parts: parts.sum((0, 1)), rest)
    return map_specs(join, {name: specs[name] for name in rest}, rest)


def _token_specs(batch_MB: Batch, share: TokenShare) -> dict[str, P]:
    """Of the arrays [microbatch, batch, length] of tokens, and of those [microbatch, batch] of rows."""
    spec = P(None, share.batch or None, share.length or None)
    return {name: P(*spec[: x.ndim]) for name, x in batch_MB.items()}


def _layer_specs(place: Placement, share: TokenShare, axis: str, specs: Tree) -> Tree:
    """Of the layers' weights: each stage its own, and of experts each device those that it serves."""
    return jax.tree.map(
        lambda spec: P(axis, *spec[1:]), own_specs(place, share.batch, specs), is_leaf=lambda x: isinstance(x, P)
    )


def runs(plan: Plan) -> list[tuple[int, int]]:
    """(first tick, the one behind the last) of each scan."""
    kinds = plan.kinds
    edges = [0, *(np.flatnonzero((kinds[1:] != kinds[:-1]).any(axis=1)) + 1).tolist(), len(kinds)]
    return list(pairwise(edges)) if len(edges) - 1 <= MAX_SCANS else [(0, len(kinds))]


def _run_ticks(worker: Worker, carry: Carry, columns: dict[str, jax.Array]) -> Carry:
    """One scan for each run of ticks with the same kinds of op, so that no tick asks; or one scan that asks."""
    kinds = worker.plan.kinds
    arrival = {"x": worker.plan.x_arrival, "dy": worker.plan.dy_arrival}
    asked = {letter: jnp.asarray(kinds[:, op]) for op, letter in enumerate("fbw")}
    for begin, end in runs(worker.plan):
        arrivals = {name: bool((ticks[begin:end] != IDLE).any()) for name, ticks in arrival.items()}
        static = {
            letter: bool(kinds[begin, op]) if (kinds[begin:end, op] == kinds[begin, op]).all() else None
            for op, letter in enumerate("fbw")
        }
        ticks = {name: value[begin:end] for name, value in columns.items()}
        ticks |= {f"has_{letter}": value[begin:end] for letter, value in asked.items()}

        def tick(carry: Carry, at: Batch, static: dict = static, arrivals: dict = arrivals) -> tuple[Carry, None]:
            carry = worker.receive(carry, at, **arrivals)
            for letter, op in {"f": worker.forward, "b": worker.backward, "w": worker.weight}.items():
                known, asked = static[letter], at[f"has_{letter}"]
                if worker.one_by_one and known is not False:
                    known, asked = None, asked & worker.has_done(carry, at)
                carry = _where_any(known, asked, partial(op, at=at), carry)
            return carry, None

        carry, _ = jax.lax.scan(tick, carry, ticks)
    return carry


def _where_any(static: bool | None, asked: jax.Array, op: Callable[[Carry], Carry], carry: Carry) -> Carry:
    """`op` where any stage runs it: known here, or asked at each tick (the same answer on every device)."""
    if static is None:
        return jax.lax.cond(asked, op, lambda same: same, carry)
    return op(carry) if static else carry
