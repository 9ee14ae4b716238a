"""The traffic of a step by axis and kind: bytes that a device sends, over which link, for how long."""

from collections.abc import Iterable
from dataclasses import dataclass

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.collective import Collective
from meshtrain.cost.links import collective_seconds, group_of, wire
from meshtrain.layout import Placement
from meshtrain.layout.words import size_text
from meshtrain.run.terminal import aligned


@dataclass(frozen=True)
class Traffic:
    """What is exchanged over a set of axes in one way. wire_bytes: sent by a device in a step; seconds: on its link,
    one after the other."""

    axes: tuple[str, ...]
    kind: str
    size: int
    count: int
    wire_bytes: float
    link: str
    seconds: float
    why: tuple[str, ...]


def by_axis(place: Placement, collectives: Iterable[Collective], cluster: Cluster) -> tuple[Traffic, ...]:
    """Collectives of the same kind over the same axes together, the longest first."""
    found: dict[tuple[tuple[str, ...], str], list[Collective]] = {}
    for one in collectives:
        found.setdefault((one.axes, one.kind), []).append(one)
    rows = [_traffic(place, key, group, cluster) for key, group in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _traffic(
    place: Placement, key: tuple[tuple[str, ...], str], collectives: list[Collective], cluster: Cluster
) -> Traffic:
    axes, kind = key
    group = group_of(place.axis_sizes, axes, cluster)
    return Traffic(
        axes=axes,
        kind=kind,
        size=group.size,
        count=sum(one.count for one in collectives),
        wire_bytes=sum(one.wire_bytes for one in collectives),
        link=wire(group, cluster).link,
        seconds=sum(collective_seconds(kind, one.bytes, group, cluster) * one.count for one in collectives),
        why=tuple(dict.fromkeys(one.why for one in collectives)),
    )


def traffic_lines(rows: Iterable[Traffic]) -> list[str]:
    """A table: axes, kind, times, what for, link, bytes sent and seconds."""
    cells = [
        (
            " x ".join(row.axes), row.kind, f"{row.count:,}", "; ".join(row.why[:3])[:44], row.link,
            f"{size_text(row.wire_bytes)}", f"{row.seconds * 1e3:,.1f} ms",
        )
        for row in rows
    ]  # fmt: skip
    if not cells:
        return ["TRAFFIC: none, one device has all of it"]
    heads = ("over", "kind", "times", "of", "link", "sent", "on the link")
    return ["TRAFFIC of one device in a step, before hiding it behind compute", "", *aligned([heads, *cells])]
