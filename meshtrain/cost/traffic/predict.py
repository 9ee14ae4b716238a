"""`predict_traffic`: every collective of a step, from the declaration alone.

Sums of a few numbers (the loss, the norm of the gradient, counts of tokens) are left out: the ledger has a line for
them. What experts exchange is planned for an even load.
"""

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.context import context_traffic
from meshtrain.cost.traffic.experts import expert_traffic
from meshtrain.cost.traffic.setting import Setting
from meshtrain.cost.traffic.stream import boundaries, ends, layer_stream
from meshtrain.cost.traffic.weights import weight_traffic
from meshtrain.layout import Placement
from meshtrain.step import StepConfig


def predict_traffic(
    config: StepConfig, place: Placement, *, global_batch: int, length: int, packed: bool = False
) -> list[Collective]:
    """All collectives of a training step; a placement of devices that need not exist is enough (place_abstract)."""
    setting = Setting(config, place, global_batch, length, packed)
    parts = (weight_traffic, layer_stream, context_traffic, expert_traffic, ends, boundaries)
    return [one for part in parts for one in part(setting)]
