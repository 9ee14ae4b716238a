"""How long a step takes on a cluster that need not exist: computing, what is exchanged and not hidden, bubble, update.

    seconds = microbatches through the stages + gradients' reduction and weights' gathering + update

The busiest stage's time is told by cause; what all stages wait for each other is the bubble. Model FLOPs come from
model/flops.py, the bubble from the schedule's table, links from the cluster.
"""

from dataclasses import dataclass
from functools import lru_cache

from meshtrain.cost.bubble import Pieces, pipeline_time
from meshtrain.cost.cluster import Cluster
from meshtrain.cost.links import collective_seconds
from meshtrain.cost.passes import COMPUTE, UPDATE, Parts, Passes, Step, layer_passes, output_passes, plus, total
from meshtrain.cost.software import MESHTRAIN, Software
from meshtrain.cost.split import Split, split_of
from meshtrain.cost.weights import layer_by_layer, once_a_step
from meshtrain.layout import Placement
from meshtrain.model import ModelConfig, model_flops_per_token
from meshtrain.step import StepConfig


@dataclass(frozen=True)
class StepTime:
    """A step, predicted. parts: seconds of the busiest stage by cause, which add up to `seconds`:

    products, attention, memory (norms and other elementwise work), recompute; exchanges that are not hidden:
    tensor_parallel, context, experts, sends, weights, data, matrices (Muon's); host (waiting for it), bubble, update,
    muon (its iterations). hidden: exchanges behind computation. bubble: idle share of the pipeline. hardware_flops: of
    all devices' forward and backward passes; update_flops: of their products in the update.
    """

    seconds: float
    parts: Parts
    hidden: Parts
    bubble: float
    tokens: int
    num_devices: int
    model_flops: float
    hardware_flops: float
    update_flops: float
    peak: float

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together."""
        return self.tokens / self.seconds

    @property
    def flops_per_device(self) -> float:
        """Model FLOP/s of one device."""
        return self.model_flops / self.seconds / self.num_devices

    @property
    def mfu(self) -> float:
        """Share of the peak, model FLOPs."""
        return self.flops_per_device / self.peak

    @property
    def hfu(self) -> float:
        """Share of the peak, with what is computed again, what a mask hides but is computed, and the update."""
        return (self.hardware_flops + self.update_flops) / self.seconds / self.num_devices / self.peak

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return sum(self.parts.get(cause, 0.0) for cause in COMPUTE)

    @property
    def exposed(self) -> Parts:
        """Seconds of exchanges that nothing hides, by cause."""
        aside = (*COMPUTE, "host", "bubble", *UPDATE)
        return {cause: seconds for cause, seconds in self.parts.items() if cause not in aside}


def step_time(
    config: StepConfig, place: Placement, global_batch: int, length: int, cluster: Cluster,
    *, software: Software = MESHTRAIN,
) -> StepTime:  # fmt: skip
    """A run's step under a placement. InputError where the batch does not divide or the cluster lacks the dtype."""
    split = split_of(place, config.model, global_batch, length, cluster, config.optimizer)
    return predict(config.model, split, length, cluster, software, config.precision.compute)


def predict(
    model: ModelConfig, split: Split, length: int, cluster: Cluster,
    software: Software = MESHTRAIN, compute: str = "bfloat16",
) -> StepTime:  # fmt: skip
    """The step of a split, for rows of `length` tokens. InputError where the cluster has no figure for the dtype."""
    step = Step(model, split, length, cluster, software, compute)
    layer, output = layer_by_layer(step, layer_passes(step)), output_passes(step)
    send = _send_seconds(step)
    pieces = _pieces(step, layer, output, send)
    schedule = split.schedule or "1f1b"
    run = pipeline_time(schedule, split.num_stages, split.num_microbatches, pieces, software.lock_step)
    busiest = int(pieces.stage_work(split.num_stages).argmax())
    layers = sum(split.pieces[busiest :: split.num_stages])
    microbatch = plus((layers, _all(layer)), (1, {"sends": 2 * split.chunks * send, "host": software.host_microbatch}))
    if busiest == split.num_stages - 1:
        microbatch = plus((1, microbatch), (1, _all(output)))
        if step.replays:
            microbatch = plus((1, microbatch), (-split.pieces[-1], layer.forward), (-1, {"sends": send}))
    once, hidden = once_a_step(step, layers, layers * (total(layer.backward) + total(layer.weight)))
    parts = plus((split.num_microbatches, microbatch), (1, once), (1, {"bubble": run.seconds - run.work}))
    tokens = split.global_batch * length
    replicas = split.batch_parts * split.length_parts * split.tensor.size
    flops = split.num_microbatches * replicas * (model.num_layers * layer.flops + output.flops)
    return StepTime(
        seconds=total(parts),
        parts={cause: seconds for cause, seconds in parts.items() if seconds},
        hidden=plus((split.num_microbatches * layers, layer.hidden), (1, hidden)),
        bubble=run.bubble,
        tokens=tokens,
        num_devices=split.num_devices,
        model_flops=tokens * _model_flops(model, length),
        hardware_flops=flops,
        update_flops=split.num_devices * sum(dealt.flops for dealt in split.whole),
        peak=cluster.peak_rate(compute).value,
    )


_model_flops = lru_cache(maxsize=256)(model_flops_per_token)  # it describes the model's weights


def _pieces(step: Step, layer: Passes, output: Passes, send: float) -> Pieces:
    """Seconds of each piece's passes: its layers, the output behind the last, and the message to the next.

    Where a piece's backward pass replays its forward pass, the last piece, for which nobody waits, has only that.
    """
    found = []
    for kind, message in (("forward", send), ("backward", send), ("weight", 0.0)):
        one, last = total(getattr(layer, kind)), total(getattr(output, kind))
        found.append([num_layers * one + message for num_layers in step.split.pieces])
        found[-1][-1] += last
    if step.software.lock_step:
        found[0][-1], found[1][-1] = found[0][-1] - total(output.forward), found[1][-1] + total(output.forward)
    if step.replays:
        found[0][-1] = 0.0
    return Pieces(*(tuple(times) for times in found))


def _send_seconds(step: Step) -> float:
    """Seconds of one message between stages: the activation of a microbatch, or this device's part of it."""
    split = step.split
    shared = split.sequence or step.software.scatters_sends
    num_bytes = step.tokens * step.model.embed * step.itemsize / (split.tensor.size if shared else 1)
    return collective_seconds("permute", num_bytes, split.stage, step.cluster)


def _all(passes: Passes) -> Parts:
    return plus((1, passes.forward), (1, passes.backward), (1, passes.weight))
