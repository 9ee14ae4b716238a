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
from meshtrain.model import ModelConfig, loss_sums
from meshtrain.parallel import LossSums
from meshtrain.step.microbatches import Batch, microbatches
from meshtrain.step.optimizer import OptimizerConfig, make_optimizer
from meshtrain.step.pipeline import PipelineStep, total
from meshtrain.step.precision import Precision
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
    Metrics are float32 scalars of the whole global batch: loss (token mean of ce + z), ce, z_loss, grad_norm (before
    clipping), num_tokens, and skipped: 1 where a loss or gradient was not finite or no token was counted: then nothing
    but the step's number was changed. With `gradients` they also hold the gradients before clipping: the same step,
    seen from inside.
    """
    specs = state_specs(config.model, config.optimizer)
    weights = physical_specs(specs.params, place)
    optimizer = make_optimizer(config.optimizer, weights)
    summed = _summed_rows(place)

    def step(state: TrainState, batch: Batch, learning_rate: jax.Array) -> tuple[TrainState, Metrics]:
        params = config.precision.compute_copy(state.params, weights, place)
        sums, grads = _summed_gradients(config, place, weights, params, batch, state.step)
        grads = place.constrain_tree("optimizer", place.constrain_tree(summed, grads, weights), weights)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        norm = optax.tree.norm(grads)
        metrics = {"gradients": grads} if gradients else {}
        if config.optimizer.clip is not None:
            scale = config.optimizer.clip / jnp.maximum(norm, config.optimizer.clip)
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        masters = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        usable = jnp.isfinite(norm) & jnp.isfinite(sums.loss_sum) & (sums.num_tokens > 0)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(usable, new, old), (masters, opt_state), (state.params, state.opt_state)
        )
        skipped = 1 - usable.astype(jnp.int32)
        new_state = TrainState(params, opt_state, state.step + 1, state.num_skipped + skipped)
        return new_state, _metrics(sums, norm, skipped) | metrics

    shardings = state_shardings(specs, place)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))


def _summed_gradients(
    config: StepConfig, place: Placement, specs: Tree, params: Tree, batch: Batch, step: jax.Array
) -> tuple[LossSums, Tree]:
    """Sums of the loss and the gradient of its token mean, over all microbatches of the global batch."""
    num_tokens = jnp.maximum((batch["labels"] >= 0).sum(), 1).astype(jnp.float32)
    key = jax.random.fold_in(jax.random.key(config.seed), step) if config.model.dropout else None

    def mean_loss(params: Tree, microbatch: Batch) -> tuple[jax.Array, LossSums]:
        sums = loss_sums(params, config.model, microbatch, place, z_loss=config.z_loss, dropout_key=key)
        return sums.loss_sum / num_tokens, sums

    def pipelined(params: Tree, microbatch: Batch) -> tuple[Tree, LossSums]:
        stages = PipelineStep(config.model, place, specs)
        grads, sums = stages.gradient(params, microbatch, num_tokens, config.z_loss, key)
        return grads, total(sums)

    gradient = pipelined if place.layout.pipeline else jax.grad(mean_loss, has_aux=True)
    num = place.layout.accumulate
    if num == 1:
        grads, sums = gradient(params, batch)
        return sums, grads

    def add(carry: tuple[LossSums, Tree], microbatch: Batch) -> tuple[tuple[LossSums, Tree], None]:
        grads, sums = gradient(params, microbatch)
        summed = jax.tree.map(lambda total, g: total + g.astype(jnp.float32), carry, (sums, grads))
        return (summed[0], place.constrain_tree(_summed_rows(place), summed[1], specs)), None

    zero_grads = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    zero = (
        LossSums(*(jnp.zeros((), jnp.float32) for _ in LossSums._fields)),
        place.constrain_tree(_summed_rows(place), zero_grads, specs),
    )
    summed, _ = jax.lax.scan(add, zero, microbatches(batch, num))
    return summed


def _summed_rows(place: Placement) -> str:
    """The rows in which gradients are summed. Those of a pipeline that gathers once a step come reduced already."""
    pipeline = place.layout.pipeline
    return "optimizer" if pipeline and pipeline.gather == "step" else place.gradient_rows


def _metrics(sums: LossSums, norm: jax.Array, skipped: jax.Array) -> Metrics:
    counted = jnp.maximum(sums.num_tokens, 1)
    return {
        "loss": sums.loss_sum / counted, "ce": sums.ce_sum / counted, "z_loss": sums.z_sum / counted,
        "grad_norm": norm, "num_tokens": sums.num_tokens, "skipped": skipped.astype(jnp.float32),
    }  # fmt: skip
