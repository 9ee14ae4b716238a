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

from meshtrain.layout import Placement
from meshtrain.layout.padding import physical_specs
from meshtrain.model import ModelConfig
from meshtrain.parallel import LossSums
from meshtrain.step.gradients import summed_gradients, summed_rows
from meshtrain.step.microbatches import Batch
from meshtrain.step.optimizer import OptimizerConfig, make_optimizer
from meshtrain.step.precision import Precision
from meshtrain.step.routing import move_biases, router_metrics
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
    optimizer = make_optimizer(config.optimizer, specs.params, place)
    rows = summed_rows(place)

    def step(state: TrainState, batch: Batch, learning_rate: jax.Array) -> tuple[TrainState, Metrics]:
        params = config.precision.compute_copy(state.params, weights, place)
        key = jax.random.fold_in(jax.random.key(config.seed), state.step) if config.model.dropout else None
        (sums, routers, grads), routed = summed_gradients(
            config.model, place, weights, params, batch, config.z_loss, key
        )
        grads = place.constrain_tree("optimizer", place.constrain_tree(rows, grads, weights), weights)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        norm = optax.tree.norm(grads)
        metrics = {"gradients": grads} if gradients else {}
        if config.optimizer.clip is not None:
            scale = config.optimizer.clip / jnp.maximum(norm, config.optimizer.clip)
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        masters = jax.tree.map(lambda p, u: p + learning_rate * u, state.params, updates)
        masters = move_biases(masters, routers, config.model.moe, place)
        told = router_metrics(routers, routed, config.model.moe)
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


def _metrics(sums: LossSums, norm: jax.Array, told: Metrics) -> Metrics:
    counted = jnp.maximum(sums.num_tokens, 1)
    loss = sums.loss_sum / counted
    if told:
        loss = loss + told["balance_loss"] + told["router_z_loss"]
    return {
        "loss": loss, "ce": sums.ce_sum / counted, "z_loss": sums.z_sum / counted, **told,
        "grad_norm": norm, "num_tokens": sums.num_tokens,
    }  # fmt: skip
