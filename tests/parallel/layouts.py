"""Layouts for the tests of this floor, with axis names of their own, and a placement of each on 8 virtual devices."""

from typing import Any

from meshtrain.layout import Layout, Placement, place, single_placement

LAYOUTS: dict[str, dict[str, Any]] = {
    "batch": dict(mesh=dict(rows=8), rules=dict(batch="rows")),
    "batch and vocab": dict(
        mesh=dict(rows=2, cols=4), rules=dict(batch="rows", heads="cols", kv_heads="cols", vocab="cols")
    ),
    "sequence": dict(
        mesh=dict(rows=2, cols=4), rules=dict(batch="rows", heads="cols", kv_heads="cols", vocab="cols"),
        activations=dict(stream="cols"),
    ),
    "length, sequence": dict(
        mesh=dict(rows=2, ring=2, cols=2), rules=dict(batch="rows", heads="cols", kv_heads="cols", vocab="cols"),
        activations=dict(length="ring", stream=("ring", "cols")),
    ),
    "two axes, zero3": dict(
        mesh=dict(a=2, b=2, c=2), rules=dict(batch="a", vocab=("b", "c"), heads=("b", "c"), kv_heads=("b", "c")),
        params=dict(embed="a"),
    ),
    "an axis that nothing uses": dict(
        mesh=dict(rows=2, cols=2, rest=2), rules=dict(batch="rows", heads="cols", vocab="cols", mlp="rest")
    ),
}  # fmt: skip


def placed(name: str) -> Placement:
    """The placement of one of LAYOUTS, or "single"."""
    return single_placement() if name == "single" else place(Layout.parse(LAYOUTS[name], name=name.replace(" ", "_")))
