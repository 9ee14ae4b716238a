"""What each mesh axis does, in the words of the field, read off the rules: ZeRO-2, Megatron tensor parallelism, ...

The role of an axis follows from the dims that are mapped to it and from the class of arrays where that happens first;
nothing is known about its name.
"""

import math

from meshtrain.layout.inventory import WEIGHT_KINDS
from meshtrain.layout.order import order_axes
from meshtrain.layout.placement import Placement
from meshtrain.layout.words import listing, plural

# The ZeRO stage from which on a class is stored in parts.
ZERO = {"params": 3, "grads": 2, "optimizer": 1}

# What is cut where an axis is mapped to this dim in every class, that is, also while a weight is used.
PARTS = {
    "heads": "attention", "kv_heads": "keys and values", "head_dim": "the heads' width", "mlp": "the MLP",
    "vocab": "the vocabulary", "embed": "the width", "position": "the position table", "layers": "the stack of layers",
}  # fmt: skip


COPIES = "copies that all compute the same"


def zero_stage(place: Placement, axis: str) -> int:
    """0 where no weight is cut over `axis` for storage alone; else the ZeRO stage: 1, 2 or 3."""
    for kind in WEIGHT_KINDS:
        rows = place.rules(kind).rows
        if any(axis in axes and axis not in place.rules("use").axes(dim) for dim, axes in rows.items()):
            return ZERO[kind]
    return 0


def roles(place: Placement) -> dict[str, list[str]]:
    """Axis larger than 1 -> what it does: phrases such as "ZeRO-3" and "Megatron tensor parallelism"."""
    found: dict[str, list[str]] = {}
    for axis, size in place.axis_sizes.items():
        if size > 1:
            found[axis] = _roles_of(place, axis)
    return found


def _roles_of(place: Placement, axis: str) -> list[str]:
    use, activations = place.rules("use"), place.rules("activations")
    phrases = []
    stage, shares_batch = zero_stage(place, axis), axis in activations.axes("batch")
    if stage and (shares_batch or axis in activations.axes("length")):
        phrases.append(f"ZeRO-{stage}")
    elif shares_batch:
        phrases.append("data parallelism")
    if axis in activations.axes("length"):
        zigzag = ", zigzag" if axis in order_axes(place) and place.layout.order == "zigzag" else ""
        phrases.append(f"context parallelism ({place.layout.attention} attention{zigzag})")
    parts = [dim for dim in PARTS if axis in use.axes(dim)]
    if "layers" in parts and place.layout.pipeline:
        parts.remove("layers")
        phrases.append("pipeline stages")
    if axis in use.axes("expert"):
        phrases.append("expert parallelism")
    if {"heads", "mlp"} <= set(parts) and "embed" not in parts:
        sequence = " and sequence" if axis in activations.axes("stream") else ""
        phrases.append(f"Megatron tensor{sequence} parallelism")
        parts = [dim for dim in parts if dim not in ("heads", "kv_heads", "mlp", "vocab")]
    elif axis in activations.axes("stream") and axis not in activations.axes("length"):
        phrases.append("a residual stream cut along its length")
    if parts:
        phrases.append(f"tensor parallelism of {listing(PARTS[dim] for dim in parts)}")
    if stage and not phrases:
        phrases.append(f"ZeRO-{stage} storage (the batch is not cut over it)")
    return phrases or [COPIES]


def words(place: Placement) -> str:
    """The layout in one sentence: `ZeRO-2 over data with Megatron tensor parallelism over tensor`."""
    over: dict[str, list[str]] = {}
    for axis, phrases in roles(place).items():
        for phrase in phrases:
            over.setdefault(phrase, []).append(axis)
    copies = over.pop(COPIES, [])
    clauses = [
        f"{phrase} over {listing(axes)}" for phrase, axes in sorted(over.items(), key=lambda item: _rank(item[0]))
    ]
    if copies:
        num = math.prod(place.axis_sizes[axis] for axis in copies)
        clauses.append(f"{plural(num, 'copy')} over {listing(copies)} that all compute the same")
    if not clauses:
        return "one device: nothing is cut"
    return " with ".join([clauses[0], listing(clauses[1:])] if len(clauses) > 1 else clauses)


def _rank(phrase: str) -> int:
    """Parallelism over the data first, then over the length, then over the model."""
    starts = ("ZeRO", "data", "context")
    return next((i for i, start in enumerate(starts) if phrase.startswith(start)), len(starts))
