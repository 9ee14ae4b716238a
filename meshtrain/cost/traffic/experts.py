"""What tokens send to reach their experts and come back: an all-to-all for each axis that cuts experts and tokens.

Planned for an even load: every device sends each of its pairs of a token and an expert once over every such axis.
Buffers are larger than that (parallel/experts/dropless.py), and how uneven the load is depends on the data.
"""

from collections.abc import Iterator

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.setting import Setting
from meshtrain.parallel.experts.axes import ExpertAxes
from meshtrain.parallel.pipeline.share import inner_placement

FLOAT32 = np.dtype(np.float32)


def expert_traffic(setting: Setting) -> list[Collective]:
    """Out and back, forward and backward; nothing for a model without experts."""
    model = setting.config.model
    if model.moe is None:
        return []
    return list(_exchanges(setting, model.num_moe_layers / model.num_layers))


def _exchanges(setting: Setting, share: float) -> Iterator[Collective]:
    """share: of all layers, those with experts."""
    model, place, turns = setting.config.model, setting.place, setting.turns
    assert model.moe is not None
    axes = ExpertAxes.of(inner_placement(place), setting.length)
    tokens = setting.rows * setting.length // place.size(axes.tokens + setting.own_axes)
    room = place.layout.experts.capacity_factor or 1.0
    held = round(room * tokens * model.moe.top_k * model.embed * setting.config.precision.dtype.itemsize)
    again = turns.again if place.layout.remat == "full" or place.layout.pipeline else 0
    weights = held // (model.embed * setting.config.precision.dtype.itemsize) * FLOAT32.itemsize
    passes = (("forward", turns.forward), ("backward", turns.backward + again))
    for axis in axes.exchanged:
        for phase, count in passes:
            times = round(share * count)
            yield from setting.make("all_to_all", (axis,), held, times, phase, "expert", "tokens to their experts")
            yield from setting.make("all_to_all", (axis,), held, times, phase, "expert", "results back to their tokens")
        times, why = 2 * round(share * turns.backward), "weights of the choices, and their gradients back"
        yield from setting.make("all_to_all", (axis,), weights, times, "backward", "expert", why)
