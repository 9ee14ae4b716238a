"""What tokens send to reach their experts and come back: an all-to-all for each axis that cuts experts and tokens.

Planned for an even load: every device sends each of its pairs of a token and an expert once over every such axis.
Without a capacity the buffers are larger than that (`room`), and how uneven the load is depends on the data. Where axes
cut experts or their hidden layer for the same tokens, each device has a part of a sum.
"""

from collections.abc import Iterator

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.setting import Setting
from meshtrain.model import MoEConfig
from meshtrain.parallel.experts.axes import ExpertAxes
from meshtrain.parallel.experts.dropless import Dropless
from meshtrain.parallel.experts.geometry import Geometry
from meshtrain.parallel.shard import without
from meshtrain.step.routing import needs_load

FLOAT32, INT32 = np.dtype(np.float32), np.dtype(np.int32)


def expert_traffic(setting: Setting) -> list[Collective]:
    """Out and back, forward and backward; nothing for a model without experts."""
    moe = setting.config.model.moe
    if moe is None:
        return []
    return [*_choices(setting, moe), *_exchanges(setting, moe), *_sums(setting, moe), *_loads(setting, moe)]


def expert_axes(setting: Setting) -> ExpertAxes:
    """What each axis does around the experts."""
    return ExpertAxes.of(setting.place, setting.length)


def _again(setting: Setting) -> int:
    """How often experts run once more in a backward pass: other policies of remat keep what an exchange brings."""
    turns = setting.turns
    return turns.stack.again if turns.replays or setting.place.layout.remat == "full" else 0


def _choices(setting: Setting, moe: MoEConfig) -> Iterator[Collective]:
    """With a capacity the choices of a whole row are needed, to count who comes before whom."""
    axes, place = without(setting.axes["stream"], setting.axes["batch"]), setting.place
    if place.layout.experts.capacity_factor is None:
        return
    num_bytes = setting.activation((setting.rows, setting.length, moe.top_k), ("batch", "whole", "choice"), INT32)
    for phase, count in (("forward", setting.turns.stack.forward), ("backward", _again(setting))):
        yield from setting.make("all_gather", axes, num_bytes, count, phase, "stream", "choices of whole rows")


def _exchanges(setting: Setting, moe: MoEConfig) -> Iterator[Collective]:
    """Out and back over every axis; what travels first is how many tokens each expert gets."""
    passes, again, axes, place = setting.turns.stack, _again(setting), expert_axes(setting), setting.place
    returned = again if setting.turns.replays else 0  # (a layer that is done again is not done to its very end)
    rows = setting.rows // place.size(axes.batch)
    capacity = place.layout.experts.capacity(setting.length, moe.top_k, moe.num_experts)
    shape = rows, setting.length // place.size(axes.length)
    geometry = Geometry.of(place, axes, shape, moe.num_experts, moe.top_k, capacity, gpu=True)
    slots = geometry.slots
    pairs = geometry.num_tokens * moe.top_k if slots is None else place.size(axes.exchanged) * geometry.local * slots
    token = setting.config.model.embed * setting.config.precision.dtype.itemsize
    for hop, axis in enumerate(geometry.hops):
        room = pairs if slots is not None else Dropless(geometry).num_rows(hop)
        for phase, count, width, why in (
            ("forward", passes.forward, token, "tokens to their experts"),
            ("forward", passes.forward, token, "results back to their tokens"),
            ("backward", passes.backward + again, token, "tokens to their experts"),
            ("backward", passes.backward + returned, token, "results back to their tokens"),
            ("backward", passes.backward, FLOAT32.itemsize, "weights of the choices"),
            ("backward", passes.backward, FLOAT32.itemsize, "gradients of the choices' weights"),
        ):
            held = pairs * width
            yield from setting.make("all_to_all", (axis,), held, count, phase, "expert", why, room=room * width)
        if slots is None:
            counts, why = place.size((axis,)) * moe.num_experts * INT32.itemsize, "counts of each expert's tokens"
            yield from setting.make("all_gather", (axis,), counts, passes.forward, "forward", "expert", why)
            yield from setting.make("all_gather", (axis,), counts, again, "backward", "expert", why)


def _sums(setting: Setting, moe: MoEConfig) -> Iterator[Collective]:
    """The stream on its way in, where tokens are cut less than it is, and the sum of the parts on the way out."""
    passes, axes, place = setting.turns.stack, expert_axes(setting), setting.place
    stream = without(setting.axes["stream"], axes.length)
    tokens = setting.rows * setting.length // place.size(axes.tokens)
    held = tokens * setting.config.model.embed * setting.config.precision.dtype.itemsize
    kind, dim = ("reduce_scatter", "stream") if stream and stream == axes.summed else ("all_reduce", "")
    for phase, count, what in (
        ("forward", passes.forward, "stream"), ("backward", _again(setting), "stream, again,"),
        ("backward", passes.backward, "gradient"),
    ):  # fmt: skip
        yield from setting.make("all_gather", stream, held, count, phase, "stream", f"{what} into the experts")
        yield from setting.make(kind, axes.summed, held, count, phase, dim, f"{what} out of the experts")
    weights, why = tokens * moe.top_k * FLOAT32.itemsize, "gradients of the choices' weights, their parts"
    yield from setting.make("all_reduce", axes.summed, weights, passes.backward, "backward", "", why)


def _loads(setting: Setting, moe: MoEConfig) -> Iterator[Collective]:
    """How many tokens chose each expert: a sum in each layer; in a pipeline one for all layers of a stage, behind its
    ticks, and what the stages found side by side, in the model's order."""
    place, numbers, why = setting.place, moe.num_experts * FLOAT32.itemsize, "tokens that chose each expert"
    axes = setting.axes["batch"] + without(setting.axes["stream"], setting.axes["batch"])
    if place.layout.pipeline is None:
        yield from setting.make("all_reduce", axes, numbers, setting.turns.stack.forward, "forward", "", why)
        yield from setting.make("all_reduce", axes, numbers, _again(setting), "backward", "", f"{why}, again")
        return
    ids = place.layer_ids(setting.config.model.num_stacked)
    assert ids is not None
    for phase in ("update", "forward")[: 1 + needs_load(moe, place)]:
        yield from setting.make("all_reduce", setting.own_axes, numbers * ids[0].size, 1, phase, "", why)
        yield from setting.make("all_gather", setting.axes["layers"], numbers * ids.size, 1, phase, "layers", why)
