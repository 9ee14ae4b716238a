"""The axes that cut the batch and nothing else: they belong to the pipeline, like that of the stages.

Each device adds up its own rows' part of a gradient over all ticks, and the parts are joined once a step.
"""

from dataclasses import replace

from meshtrain.layout import Placement
from meshtrain.parallel.rows import Axes, own_axes, own_rows


def batch_axes(place: Placement) -> Axes:
    """Those axes; none where weights are gathered in every pass: there the compiler has to see what stores them."""
    pipeline = place.layout.pipeline
    return own_axes(place, ("use", "activations")) if pipeline and pipeline.gather == "step" else ()


def inner_placement(place: Placement) -> Placement:
    """The placement that the stages see: the batch is not cut by axes that are theirs already, and where weights are
    gathered once a step, none is stored in parts any more."""
    pipeline = place.layout.pipeline
    if pipeline is None or pipeline.gather != "step":
        return place
    inner = own_rows(place, batch_axes(place)).layout
    return Placement(replace(inner, params=inner.rules, grads=inner.rules), place.mesh)
