"""One training step under any layout: the same numbers, wherever the arrays live.

masters (float32, `optimizer` rows) -> copy that computes (`params` rows)
-> gradients of the token mean, summed over microbatches (`grads` rows)
-> scattered to the `optimizer` rows: norm, clip, update, new masters
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from meshtrain.layout import Placement, Tree
from meshtrain.layout.padding import physical_specs
from meshtrain.model import ModelConfig
from meshtrain.model.decoder import all_sums
from meshtrain.model.losses import RouterSums, zero_sums
from meshtrain.parallel import LossSums
from meshtrain.step.microbatches import Batch, microbatches
from meshtrain.step.optimizer import OptimizerConfig, make_optimizer
from meshtrain.step.pipeline import PipelineStep, total
from meshtrain.step.precision import Precision
from meshtrain.step.routing import move_biases, needs_load, num_routed, router_metrics
from meshtrain.step.state import TrainState, state_shardings, state_specs

Metrics = dict[str, Any]  # scalars, and the tree of gradients where it is asked for


@dataclass(frozen=True)
class StepConfig:
    """What a step computes. z_loss: weight of the squared log-sum-exp of the logits in the loss. seed: of dropout."""

    model: ModelConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Precision = field(default_factory=Precision)
    z_loss: float = 0.0
    seed: int = 0


def make_train_step(
    config: StepConfig, place: Placement, *, gradients: bool = False
) -> Callable[..., tuple[TrainState, Metrics]]:
    """The jitted `step(state, batch, learning_rate) -> (state, metrics)`; the state is donated.

    batch: tokens, labels, positions, segments [batch, length] and index_B [batch]; learning_rate: float32 scalar.
    Metrics are float32 scalars of the whole global batch: loss (token mean of ce + z, and the routers' losses), ce,
    z_loss, for models with experts what `router_metrics` says, grad_norm (before clipping), num_tokens, and skipped: 1
    where a loss or gradient was not finite or no token was counted: then nothing but the step's number was changed.
    With `gradients` they also hold the gradients before clipping: the same step, seen from inside.
    """
    specs = state_specs(config.model, config.optimizer)
    weights = physical_specs(specs.params, place)
    optimizer = make_optimizer(config.optimizer, weights)
    summed = _summed_rows(place)

    def step(state: TrainState, batch: Batch, learning_rate: jax.Array) -> tuple[TrainState, Metrics]:
        params = config.precision.compute_copy(state.params, weights, place)
        sums, routers, grads = _summed_gradients(config, place, weights, params, batch, state.step)
        grads = place.constrain_tree("optimizer", place.constrain_tree(summed, grads, weights), weights)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        norm = optax.tree.norm(grads)
        metrics = {"gradients": grads} if gradients else {}
        if config.optimizer.clip is not None:
            scale = config.optimizer.clip / jnp.maximum(norm, config.optimizer.clip)
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        masters = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        masters = move_biases(masters, routers, config.model.moe, place)
        told = router_metrics(routers, num_routed(batch, place), config.model.moe)
        values = _metrics(sums, norm, told)
        usable = jnp.isfinite(norm) & jnp.isfinite(values["loss"]) & (sums.num_tokens > 0)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(usable, new, old), (masters, opt_state), (state.params, state.opt_state)
        )
        skipped = 1 - usable.astype(jnp.int32)
        new_state = TrainState(params, opt_state, state.step + 1, state.num_skipped + skipped)
        return new_state, values | {"skipped": skipped.astype(jnp.float32)} | metrics

    shardings = state_shardings(specs, place)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))


Summed = tuple[LossSums, RouterSums | None, Tree]


def _summed_gradients(
    config: StepConfig, place: Placement, specs: Tree, params: Tree, batch: Batch, step: jax.Array
) -> Summed:
    """Sums of the loss and of the routers, and the gradient of their means, over all microbatches of the batch."""
    num_tokens = jnp.maximum((batch["labels"] >= 0).sum(), 1).astype(jnp.float32)
    routed = num_routed(batch, place)
    key = jax.random.fold_in(jax.random.key(config.seed), step) if config.model.dropout else None
    stages = PipelineStep(config.model, place, specs) if place.layout.pipeline else None
    num = place.layout.accumulate
    options: dict[str, Any] = dict(z_loss=config.z_loss, dropout_key=key)
    load = _load(config, place, stages, params, batch, options) if needs_load(config.model.moe, place) else None

    def mean_loss(params: Tree, microbatch: Batch) -> tuple[jax.Array, tuple[LossSums, RouterSums | None]]:
        sums, routers = all_sums(params, config.model, microbatch, place, load=load, **options)
        loss = sums.loss_sum / num_tokens
        return loss if routers is None else loss + routers.loss.sum() / routed, (sums, routers)

    def gradient(params: Tree, microbatch: Batch) -> Summed:
        if stages is not None:
            grads, sums, routers = stages.gradient(
                params, microbatch, num_tokens, load=load, num_routed=routed, **options
            )
            return total(sums), routers, grads
        grads, (sums, routers) = jax.grad(mean_loss, has_aux=True)(params, microbatch)
        return sums, routers, grads

    if num == 1:
        return gradient(params, batch)

    def add(carry: Summed, microbatch: Batch) -> tuple[Summed, None]:
        found = gradient(params, microbatch)
        summed = jax.tree.map(lambda total, g: total + g.astype(jnp.float32), carry, found)
        return (summed[0], summed[1], place.constrain_tree(_summed_rows(place), summed[2], specs)), None

    zero_grads = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    zero = (
        LossSums(*(jnp.zeros((), jnp.float32) for _ in LossSums._fields)),
        zero_sums(config.model),
        place.constrain_tree(_summed_rows(place), zero_grads, specs),
    )
    summed, _ = jax.lax.scan(add, zero, microbatches(batch, num))
    return summed


def _load(
    config: StepConfig, place: Placement, stages: PipelineStep | None, params: Tree, batch: Batch,
    options: dict[str, Any],
) -> jax.Array:  # fmt: skip
    """Pairs of the whole batch by [MoE layer, expert], from a forward pass over all microbatches."""

    def add(load: jax.Array, microbatch: Batch) -> tuple[jax.Array, None]:
        if stages is not None:
            routers = stages.sums(params, microbatch, **options)[1]
        else:
            routers = all_sums(params, config.model, microbatch, place, **options)[1]
        assert routers is not None
        return load + routers.load, None

    none = zero_sums(config.model)
    assert none is not None
    return jax.lax.scan(add, none.load, microbatches(batch, place.layout.accumulate))[0]


def _summed_rows(place: Placement) -> str:
    """The rows in which gradients are summed. Those of a pipeline that gathers once a step come reduced already."""
    pipeline = place.layout.pipeline
    return "optimizer" if pipeline and pipeline.gather == "step" else place.gradient_rows


def _metrics(sums: LossSums, norm: jax.Array, told: Metrics) -> Metrics:
    counted = jnp.maximum(sums.num_tokens, 1)
    loss = sums.loss_sum / counted
    if told:
        loss = loss + told["balance_loss"] + told["router_z_loss"]
    return {
        "loss": loss, "ce": sums.ce_sum / counted, "z_loss": sums.z_sum / counted, **told,
        "grad_norm": norm, "num_tokens": sums.num_tokens,
    }  # fmt: skip
