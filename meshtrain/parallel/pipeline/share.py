"""The axes that cut the batch and nothing else: they belong to the pipeline, like that of the stages.

Left to the compiler, the sum of a gradient over the batch's axes would run for every microbatch. Here each device adds
up its own rows' part over all ticks, and the parts are joined once a step.
"""

from dataclasses import replace

from meshtrain.layout import Placement, Rules

Axes = tuple[str, ...]


def batch_axes(place: Placement) -> Axes:
    """The first axes of `batch`, slowest first, as long as they cut no weight in use and no other activation.

    None where weights are gathered in every pass: there the compiler has to see the axes that store them.
    """
    pipeline = place.layout.pipeline
    if pipeline is None or pipeline.gather != "step":
        return ()
    others = {
        axis
        for rules in (place.rules("use"), place.rules("activations"))
        for dim, axes in rules.rows.items()
        for axis in axes
        if dim != "batch"
    }
    found: list[str] = []
    for axis in place.rules("activations").axes("batch"):
        if axis in others:
            break
        found.append(axis)
    return tuple(found)


def inner_placement(place: Placement) -> Placement:
    """The placement that the stages see: the batch is not cut by axes that are theirs already, and where weights are
    gathered once a step, none is stored in parts any more."""
    layout, rows = place.layout, batch_axes(place)
    if layout.pipeline is None or layout.pipeline.gather != "step":
        return place
    rest = Rules({"batch": place.rules("activations").axes("batch")[len(rows) :]}, {"batch": "rules.batch"})
    rules, activations = layout.rules.override(rest), layout.activations.override(rest)
    return Placement(replace(layout, rules=rules, activations=activations, params=rules, grads=rules), place.mesh)
