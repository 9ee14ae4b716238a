"""How queries reach keys on other devices: what the words of `attention` ask of the axes that cut the length.

    gather     every device collects all keys and values
    ring       keys and values go round the devices, step by step
    ulysses    heads are swapped for length: each device gets whole rows of a part of its heads
    usp        both: the last axis of the rule `length` swaps heads, the axes before it are the ring

Here is what a layout can get wrong about it; `parallel.attention` does it.
"""

from typing import NamedTuple

from meshtrain.layout.finding import ERROR, NOTE, WARNING, Finding
from meshtrain.layout.inventory import Inventory
from meshtrain.layout.order import num_chunks, order_axes, uneven
from meshtrain.layout.placement import Placement
from meshtrain.layout.rules import Axes, row_text
from meshtrain.layout.words import plural


class Exchange(NamedTuple):
    """The axes larger than 1 over which keys go round (or are gathered), and those over which heads are swapped."""

    ring: Axes
    swap: Axes


def exchange_axes(place: Placement) -> Exchange:
    """What each axis of the length does under this layout."""
    ring = order_axes(place)
    return Exchange(ring, tuple(axis for axis in place.axes("length") if axis not in ring))


def exchange_findings(place: Placement, arrays: Inventory) -> list[Finding]:
    """What is wrong with `attention`, `order` and the rows of `length` and `stream`."""
    declared = place.rules("activations").axes("length")
    if not declared:
        return _without_length(place)
    if not place.axes("length"):
        return []  # the axes are there, of size 1: a small mesh of a larger layout
    found = [_unreachable(place)] if place.layout.attention == "local" else []
    lengths = {spec.shape[spec.dims.index("length")] for _, spec in arrays.batch if "length" in spec.dims}
    if num_chunks(place)[1] > 1:  # else `placement` says it
        problems = [uneven(place, length) for length in sorted(lengths)]
        found += [Finding(ERROR, "does-not-divide", *problem) for problem in problems if problem]
    found += _heads(place, arrays) + _stream(place)
    if place.layout.order == "zigzag" and not order_axes(place):
        message = "the zigzag changes nothing: whole rows come together on each device, so the work is even already."
        found.append(Finding(NOTE, "zigzag-unused", "order", message))
    return found


def _without_length(place: Placement) -> list[Finding]:
    found = []
    for key, value, default in (
        ("attention", place.layout.attention, "local"),
        ("order", place.layout.order, "contiguous"),
    ):
        if value != default:
            message = f"{value!r} is for rows that are cut along their length, and no row cuts `length`."
            remedy = f"Write rules.length=AXIS (and activations.stream=AXIS), or {key}={default!r}."
            found.append(Finding(WARNING, "length-whole", key, message, remedy))
    return found


def _unreachable(place: Placement) -> Finding:
    cut = place.text(place.axes("length"))
    message = f"'local' reaches only the keys on its own device, but rules.length cuts the length over {cut}."
    return Finding(ERROR, "length-cut", "attention", message, "attention='ring', 'gather' or 'ulysses' would work.")


def _heads(place: Placement, arrays: Inventory) -> list[Finding]:
    """Query heads that the swapping axes do not divide."""
    swap = place.size(exchange_axes(place).swap)
    heads = {spec.shape[spec.dims.index("heads")] for _, spec in arrays.params if "heads" in spec.dims}
    texts = {heads_text(place, size // place.num_shards("heads"), swap) for size in heads}
    return [Finding(ERROR, "heads-not-swapped", "attention", text) for text in sorted(texts) if text]


def heads_text(place: Placement, num_heads: int, swap: int) -> str:
    """Why this many query heads of a device cannot be shared out over `swap` devices; "" where they can."""
    if num_heads % swap == 0:
        return ""
    fitting = [n for n in range(1, swap + 1) if num_heads % n == 0 and swap % n == 0]
    axes = place.text(exchange_axes(place).swap)
    return (
        f"{place.layout.attention!r} shares the {plural(num_heads, 'query head')} of a device out over {axes} (the last"
        f" of rules.length), and {num_heads} does not divide by {swap}. {max(fitting)} devices would work, or"
        " attention='ring'."
    )


def _stream(place: Placement) -> list[Finding]:
    """The residual stream should be cut as the length is, else every layer collects all positions four times."""
    rules = place.rules("activations")
    length, stream = rules.axes("length"), rules.axes("stream")
    if stream[: len(length)] == length:
        return []
    wanted = (*length, *(axis for axis in stream if axis not in length))
    cut = place.text(place.axes("length"))
    state = f"cut over {' x '.join(stream)}" if stream else "whole on each device"
    message = (
        f"attention and MLP have their positions cut over {cut}, but the residual stream between them is"
        f" {state}: its memory does not shrink with the length's axes, and every layer sends it back and forth."
    )
    where = " and ".join(rules.source[dim] for dim in ("length", "stream") if dim in rules.source)
    return [Finding(WARNING, "stream-not-cut", where, message, f"Write activations.stream={row_text(wanted)}.")]
