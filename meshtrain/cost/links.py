"""Who is near whom, and how long a collective takes: which axes lie within fast links, rank groups, seconds by kind.

Ranks fill the mesh slowest axis first, and nodes are filled in the order of ranks: rank = sum of index x stride, where
the last axis has stride 1. The partners of an axis are therefore `stride` apart, and those of the last axes share a
node. A ring over devices of several nodes crosses between nodes once for each of its members there, so it goes as fast
as their network adapters together, but no faster than the link inside.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.collective import wire_factor


@dataclass(frozen=True)
class Group:
    """The partners of one device: how many in all, how many of them within its fast links, how many in its node."""

    size: int
    in_fast: int
    in_node: int


ALONE = Group(1, 1, 1)


@dataclass(frozen=True)
class Wire:
    """What a group's ring runs at: link is "fast", "node" or "network"; bytes/s one way of one device; seconds."""

    link: str
    rate: float
    latency: float


def strides(axis_sizes: Mapping[str, int]) -> dict[str, int]:
    """Axis -> how far its partners' ranks are apart."""
    found: dict[str, int] = {}
    stride = 1
    for axis in reversed(list(axis_sizes)):
        found[axis] = stride
        stride *= axis_sizes[axis]
    return {axis: found[axis] for axis in axis_sizes}


def rank_groups(axis_sizes: Mapping[str, int], axes: Sequence[str]) -> list[list[int]]:
    """The ranks that a collective over these axes brings together, group by group."""
    ranks = np.arange(math.prod(axis_sizes.values())).reshape(tuple(axis_sizes.values()) or (1,))
    names = list(axis_sizes)
    inside = [names.index(axis) for axis in names if axis in axes]
    outside = [i for i in range(len(names)) if i not in inside]
    size = math.prod(axis_sizes[axis] for axis in axis_sizes if axis in axes)
    grouped = ranks.transpose(outside + inside) if names else ranks
    return [[int(rank) for rank in group] for group in grouped.reshape(-1, size)]


def group_of(axis_sizes: Mapping[str, int], axes: Iterable[str], cluster: Cluster) -> Group:
    """The partners over these axes together; axes that the mesh lacks count as of size 1."""
    places = strides(axis_sizes)
    asked = [(axis_sizes[axis], places[axis]) for axis in axis_sizes if axis in set(axes)]
    size, fast, node = 1, 1, 1
    for number, stride in asked:
        size *= number
        fast *= _within(number, stride, cluster.fast_gpus)
        node *= _within(number, stride, max(cluster.gpus_per_node, cluster.fast_gpus))
    return Group(size, fast, node)


def _within(number: int, stride: int, domain: int) -> int:
    """How many partners, `stride` apart, are sure to share a domain of so many neighbours."""
    return math.gcd(number, domain // stride) if stride <= domain and domain % stride == 0 else 1


def wire(group: Group, cluster: Cluster) -> Wire:
    """The link that a ring over this group runs at, with the share of it that programs get."""
    if group.in_fast >= group.size:
        return _wire("fast", cluster)
    inside = _wire("fast" if group.in_fast >= group.in_node > 1 else "node", cluster)
    if group.in_node >= group.size:
        return inside
    across = _wire("network", cluster)
    rate = across.rate * group.in_node
    return Wire("network", min(rate, inside.rate) if group.in_node > 1 else rate, across.latency)


def _wire(name: str, cluster: Cluster) -> Wire:
    link = cluster.link(name)
    return Wire(name, link.rate.value * cluster.share(name), link.latency.value)


def collective_seconds(kind: str, num_bytes: float, group: Group, cluster: Cluster) -> float:
    """Seconds of one collective by a ring: what a device sends (collective.py: kinds, bytes) and its messages' latency.

    N-1 messages one after the other, an all_reduce twice as many, a permute one.
    """
    if group.size == 1:
        return 0.0
    found = wire(group, cluster)
    messages = {"permute": 1, "all_reduce": 2 * (group.size - 1)}.get(kind, group.size - 1)
    rate = found.rate
    if kind in ("all_to_all", "permute") and found.link == "network":  # no neighbour's adapter helps
        rate = _wire("network", cluster).rate
    return num_bytes * wire_factor(kind, group.size) / rate + messages * found.latency
