"""How often a step runs what: the layers forward, again and backward, the two ends, and the sends of a pipeline.

Counted on the device that has most to do of each: in a pipeline the embedding and the output are on different stages.
Ticks in which a stage idles run its program too, with masked values, so what is counted are ticks and not microbatches.
"""

from dataclasses import dataclass

import numpy as np

from meshtrain.layout import Placement
from meshtrain.model import ModelConfig
from meshtrain.parallel.pipeline import Plan, make_plan
from meshtrain.parallel.pipeline.executor import runs
from meshtrain.parallel.pipeline.plan import IDLE
from meshtrain.step.pipeline import pipeline_table


@dataclass(frozen=True)
class Turns:
    """Times a step. forward, again, backward: passes of a layer; again are those that a backward pass repeats.

    embed, table: lookups in the embedding, and gradients of it; head: the loss with its gradient. sends, answers:
    permutes of a pipeline, forward and back; ticks: those with a backward op; all three 0 without a pipeline.
    """

    forward: int
    again: int
    backward: int
    embed: int
    table: int
    head: int
    sends: int = 0
    answers: int = 0
    ticks: int = 0


def make_turns(model: ModelConfig, place: Placement) -> Turns:
    """The counts of a step under a layout."""
    if place.layout.pipeline is None:
        times = place.layout.accumulate
        layers = model.num_layers * times
        again = layers if place.layout.remat != "none" else 0
        return Turns(layers, again, layers, times, times, times)
    return _pipelined(model, place, make_plan(pipeline_table(place)))


def _pipelined(model: ModelConfig, place: Placement, plan: Plan) -> Turns:
    times = place.layout.accumulate
    ids = place.layer_ids(model.num_layers)
    assert ids is not None
    real = (ids >= 0).sum(axis=2)  # [stage, chunk]
    if place.axes("length"):
        real = np.full_like(real, ids.shape[2])  # (slots without a layer are computed and masked)
    busy = plan.kinds
    forward = _layers(real, plan.f_chunk[busy[:, 0]])
    backward = _layers(real, plan.b_chunk[busy[:, 1]])
    first_f, first_b = ((chunk[:, 0] <= 0).sum() for chunk in (plan.f_chunk[busy[:, 0]], plan.b_chunk[busy[:, 1]]))
    answers = sum(end - begin for begin, end in runs(plan) if (plan.dy_arrival[begin:end] != IDLE).any())
    return Turns(
        forward=times * forward, again=times * backward, backward=times * backward,
        embed=times * int(first_f + first_b), table=times * plan.num_microbatches, head=times * plan.num_microbatches,
        sends=times * int(busy[:, 0].sum()), answers=times * answers, ticks=times * int(busy[:, 1].sum()),
    )  # fmt: skip


def _layers(real: np.ndarray, chunk: np.ndarray) -> int:
    """Layers that the stage with most of them runs in these ticks [tick, stage]; an idle stage runs its first chunk."""
    return max(int(real[stage][np.maximum(chunk[:, stage], 0)].sum()) for stage in range(chunk.shape[1]))
