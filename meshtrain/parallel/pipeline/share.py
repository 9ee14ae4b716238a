"""The axes that cut tokens and nothing else: they belong to the pipeline, like that of the stages.

Each device adds up its own tokens' part of a gradient over all ticks, and the parts are joined once a step. Left to the
compiler, the sum over these axes would run in every tick.
"""

from dataclasses import replace
from typing import NamedTuple

from meshtrain.layout import Placement
from meshtrain.layout.rules import Axes
from meshtrain.parallel.rows import own_axes, own_rows


class TokenShare(NamedTuple):
    """The axes by which each device has tokens of its own: of the batch, and of the length."""

    batch: Axes
    length: Axes

    @property
    def axes(self) -> Axes:
        """All of them."""
        return self.batch + self.length


def token_share(place: Placement, experts: bool) -> TokenShare:
    """Those axes; none where weights are gathered in every pass: there the compiler has to see what stores them.

    With experts the length stays with the compiler: which pairs of a row an expert takes is counted over its shards.
    """
    pipeline = place.layout.pipeline
    if pipeline is None or pipeline.gather != "step":
        return TokenShare((), ())
    kinds = ("use", "activations")
    return TokenShare(own_axes(place, kinds), () if experts else _length_axes(place, kinds))


def _length_axes(place: Placement, kinds: tuple[str, ...]) -> Axes:
    """All axes of the length, where they cut nothing but it and, before any other axis, the stream."""
    rows = place.rules("activations")
    length = rows.axes("length")
    others = {
        axis for kind in kinds for dim, axes in place.rules(kind).rows.items() if dim not in ("length", "stream")
        for axis in axes
    }  # fmt: skip
    whole = rows.axes("stream")[: len(length)] == length and not others & set(length)
    return length if whole else ()


def inner_placement(place: Placement) -> Placement:
    """The placement that the stages see: the batch is not cut by axes that are theirs already, and where weights are
    gathered once a step, none is stored in parts any more. (The length's axes stay: attention has to go over them.)"""
    pipeline = place.layout.pipeline
    if pipeline is None or pipeline.gather != "step":
        return place
    inner = own_rows(place, token_share(place, experts=False).batch).layout
    return Placement(replace(inner, params=inner.rules, grads=inner.rules), place.mesh)
