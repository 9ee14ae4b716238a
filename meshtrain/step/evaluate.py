"""Evaluation: sums over one batch, so that any split of the held-out windows into batches gives the same mean."""

from collections.abc import Callable

import jax

from meshtrain.layout import Placement
from meshtrain.layout.padding import physical_specs
from meshtrain.model import describe, loss_sums
from meshtrain.parallel import LossSums
from meshtrain.step.pipeline import PipelineStep, total
from meshtrain.step.train import StepConfig


def make_eval_step(config: StepConfig, place: Placement) -> Callable[..., LossSums]:
    """The jitted `evaluate(masters, batch) -> LossSums`, float32 sums over the batch's counted tokens; no dropout."""
    specs = physical_specs(describe(config.model), place)

    def evaluate(masters: dict, batch: dict[str, jax.Array]) -> LossSums:
        params = config.precision.compute_copy(masters, specs, place)
        if place.layout.pipeline:
            return total(PipelineStep(config.model, place, specs).sums(params, batch, config.z_loss)[0])
        return loss_sums(params, config.model, batch, place, z_loss=config.z_loss)

    return jax.jit(evaluate)
