"""The loss and its gradient where the layout has a pipeline: the executor's, in place of those of the whole model."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import Placement, Tree
from meshtrain.model import ModelConfig
from meshtrain.model.losses import RouterSums
from meshtrain.model.stages import model_gradients, model_slots, pipeline_stages, stage_specs, stage_weights
from meshtrain.parallel import LossSums
from meshtrain.parallel.pipeline import Plan, Table, lock_step, make_plan, schedule
from meshtrain.parallel.pipeline.executor import forward_sums, gradients
from meshtrain.parallel.pipeline.share import inner_placement
from meshtrain.parallel.pipeline.timing import forward_only
from meshtrain.step.microbatches import Batch, microbatches


@dataclass(frozen=True, eq=False)
class PipelineStep:
    """What a step needs of a layout's pipeline. specs: the weights' ArraySpec, in physical shapes."""

    model: ModelConfig
    place: Placement
    specs: Tree

    @cached_property
    def plan(self) -> Plan:
        """What the scan reads, for a training step."""
        return pipeline_plan(self.place)

    def gradient(
        self, params: Tree, batch: Batch, num_tokens: jax.Array, z_loss: float, dropout_key: jax.Array | None,
        load: jax.Array | None = None, num_routed: jax.Array | float = 1.0,
    ) -> tuple[Tree, LossSums, RouterSums | None]:  # fmt: skip
        """(gradient of the summed loss / num_tokens + the routers' / num_routed, float32; sums by microbatch; of all
        microbatches the sums of the routers, in the model's order, where there are any). load: as in `all_sums`."""
        inner, layers, rest = self._used(params)
        stages = pipeline_stages(
            self.model, inner, z_loss=z_loss, dropout_key=dropout_key, scale=1 / num_tokens, load=load,
            router_scale=1 / num_routed,
        )  # fmt: skip
        sums, of_layers, of_rest = gradients(
            stages,
            layers,
            rest,
            microbatches(batch, self.plan.num_microbatches),
            self.plan,
            self.place,
            self._layer_ids(),
            stage_specs(self.specs, self.model),
        )
        return model_gradients(of_layers, of_rest, self.model, self.place), *self._told(sums)

    def sums(
        self, params: Tree, batch: Batch, z_loss: float, dropout_key: jax.Array | None = None
    ) -> tuple[LossSums, RouterSums | None]:
        """The sums as `gradient` gives them, without gradients: passes of the forward ops alone.

        The batch of an evaluation need not divide like that of a step: it is cut into as many parts as fit.
        """
        inner, layers, rest = self._used(params)
        pipeline = self.place.layout.pipeline
        assert pipeline is not None
        rows = batch["tokens"].shape[0] // self.place.num_shards("batch")
        num = math.gcd(rows, pipeline.microbatches)
        table = forward_table(self.place, num)
        stages = pipeline_stages(self.model, inner, z_loss=z_loss, dropout_key=dropout_key)
        found = forward_sums(
            stages, layers, rest, microbatches(batch, num), make_plan(table), self.place, self._layer_ids(),
            stage_specs(self.specs, self.model),
        )  # fmt: skip
        return self._told(found)

    def _told(self, found: Tree) -> tuple[LossSums, RouterSums | None]:
        """(sums by microbatch, sums of the routers from the devices' order to the model's)."""
        if self.model.moe is None:
            return found, None
        slots = model_slots(self._layer_ids())
        return found[0], jax.tree.map(lambda s: s[slots], found[1])

    def _used(self, params: Tree) -> tuple[Placement, Tree, Tree]:
        """The placement that the stages see, the layers and the rest; gathered, where that is done once a step."""
        pipeline = self.place.layout.pipeline
        assert pipeline is not None
        if pipeline.gather == "step":
            params = self.place.constrain_tree("use", params, self.specs)
        return inner_placement(self.place), *stage_weights(params, self.model, self.place)

    def _layer_ids(self) -> np.ndarray:
        ids = self.place.layer_ids(self.model.num_stacked)
        assert ids is not None
        return ids


def pipeline_table(place: Placement) -> Table:
    """The table of a placement's pipeline; InputError for a schedule that does not fit."""
    pipeline = place.layout.pipeline
    assert pipeline is not None
    table = schedule(pipeline.schedule, place.num_stages, pipeline.microbatches, pipeline.repeats)
    return table if pipeline.schedule.endswith(".csv") else lock_step(table)


def pipeline_plan(place: Placement) -> Plan:
    """What the scan reads, for a training step."""
    pipeline = place.layout.pipeline
    assert pipeline is not None
    if pipeline.schedule.endswith(".csv"):  # a file may change
        return make_plan(pipeline_table(place), pipeline.keeps_residuals)
    sizes = place.num_stages, pipeline.microbatches, pipeline.repeats
    return _plan(pipeline.schedule, *sizes, pipeline.keeps_residuals)


@cache
def _plan(name: str, num_stages: int, num_microbatches: int, repeats: int, keeps: bool) -> Plan:
    return make_plan(lock_step(schedule(name, num_stages, num_microbatches, repeats)), keeps)


def forward_table(place: Placement, num_microbatches: int) -> Table:
    """The table of so many forward passes. Whatever the schedule of the steps, F has only one good order."""
    pipeline = place.layout.pipeline
    assert pipeline is not None
    name = "interleaved" if pipeline.repeats > 1 else "gpipe"
    return forward_only(schedule(name, place.num_stages, num_microbatches, pipeline.repeats))


def total(sums: LossSums) -> LossSums:
    """Sums over all microbatches."""
    return jax.tree.map(jnp.sum, sums)
