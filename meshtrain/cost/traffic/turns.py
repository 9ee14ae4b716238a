"""How often a step runs what: the layers forward, again and backward, the two ends, and the sends of a pipeline.

Counted on the device that has most to do of each: in a pipeline the embedding and the output are on different stages.
Ticks in which a stage idles run its program too, with masked values, so what is counted are ticks and not microbatches.
"""

from dataclasses import astuple, dataclass

import numpy as np

from meshtrain.layout import Placement
from meshtrain.model import ModelConfig
from meshtrain.parallel.pipeline import Plan, make_plan
from meshtrain.parallel.pipeline.executor import runs
from meshtrain.parallel.pipeline.plan import IDLE
from meshtrain.step.pipeline import forward_table, pipeline_plan
from meshtrain.step.routing import needs_load


@dataclass(frozen=True)
class Passes:
    """Passes of a layer in a step, all layers of a stack together; again: those that a backward pass repeats."""

    forward: int = 0
    again: int = 0
    backward: int = 0


@dataclass(frozen=True)
class Turns:
    """Times a step. stack: of the layers that a pipeline cuts; dense: of those beside them that have no experts.

    embed, table: lookups in the embedding, and gradients of it; head: the loss with its gradient. sends, answers:
    permutes of a pipeline, forward and back; ticks: those with a backward op; all three 0 without a pipeline.
    replays: whether a backward op runs its piece's forward pass again, from the piece's input.
    """

    stack: Passes
    dense: Passes
    embed: int
    table: int
    head: int
    sends: int = 0
    answers: int = 0
    ticks: int = 0
    replays: bool = False

    @property
    def layers(self) -> Passes:
        """Of all layers."""
        return Passes(*(a + b for a, b in zip(astuple(self.stack), astuple(self.dense), strict=True)))


def make_turns(model: ModelConfig, place: Placement) -> Turns:
    """The counts of a step under a layout."""
    if place.layout.pipeline is not None:
        return _pipelined(model, place, pipeline_plan(place))
    times = place.layout.accumulate
    before = times if needs_load(model.moe, place) else 0  # a pass of its own, to count what experts get

    def passes(layers: int) -> Passes:
        again = layers * times if place.layout.remat != "none" else 0
        return Passes(layers * (times + before), again, layers * times)

    stack = passes(model.num_stacked)
    return Turns(stack, passes(model.num_layers - model.num_stacked), times + before, times, times)


def _pipelined(model: ModelConfig, place: Placement, plan: Plan) -> Turns:
    times = place.layout.accumulate
    ids = place.layer_ids(model.num_stacked)
    assert ids is not None
    real = (ids >= 0).sum(axis=2)  # [stage, chunk]
    if place.axes("length"):
        real = np.full_like(real, ids.shape[2])  # (slots without a layer are computed and masked)
    busy, moe = plan.kinds, model.moe
    forward = _layers(real, plan.f_chunk[busy[:, 0]])
    backward = _layers(real, plan.b_chunk[busy[:, 1]])
    first_f, first_b = (int((chunk[:, 0] <= 0).sum()) for chunk in (plan.f_chunk[busy[:, 0]], plan.b_chunk[busy[:, 1]]))
    answers = sum(end - begin for begin, end in runs(plan) if (plan.dy_arrival[begin:end] != IDLE).any())
    num, sends = plan.num_microbatches, int(busy[:, 0].sum())
    if needs_load(model.moe, place):
        before = make_plan(forward_table(place, num))
        ticks = before.kinds[:, 0]
        forward += _layers(real, before.f_chunk[ticks])
        first_f += int((before.f_chunk[ticks][:, 0] <= 0).sum())
        sends += int(ticks.sum())
    first, between = (0, 0) if moe is None else (moe.first_dense, moe.every - 1)
    replays = not plan.num_kept
    again = backward if replays or place.layout.remat != "none" else 0
    first_b *= replays  # (else the input of the first piece is not made again)
    return Turns(
        stack=Passes(times * forward, times * again, times * backward),
        # The first dense layers run with the embedding: in F, in B for its input, and where B takes their gradient.
        # Those between layers with experts run with the layer behind them.
        dense=Passes(
            times * (first * first_f + between * forward), times * (first * (first_b + num) + between * again),
            times * (first * num + between * backward),
        ),
        embed=times * (first_f + first_b), table=times * num, head=times * num,
        sends=times * sends, answers=times * answers, ticks=times * int(busy[:, 1].sum()),
        replays=replays,
    )  # fmt: skip


def _layers(real: np.ndarray, chunk: np.ndarray) -> int:
    """Layers that the stage with most of them runs in these ticks [tick, stage]; an idle stage runs its first chunk."""
    return max(int(real[stage][np.maximum(chunk[:, stage], 0)].sum()) for stage in range(chunk.shape[1]))
