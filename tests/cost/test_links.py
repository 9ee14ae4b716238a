"""Rank order, who shares a node, and how long a ring takes (THEORY 2, 3 and 6)."""

from dataclasses import replace

import pytest

from meshtrain.cost.cluster import Link
from meshtrain.cost.links import ALONE, Group, collective_seconds, group_of, rank_groups, strides, wire
from meshtrain.cost.quantity import ByteRate, GB_per_s, seconds
from tests.cost.clusters import cluster, ideal

MESH = dict(data=2, stage=2, context=2, tensor=2)


def test_rank_order() -> None:
    """THEORY 6: rank = tp + 2 cp + 4 pp + 8 dp."""
    assert strides(MESH) == dict(data=8, stage=4, context=2, tensor=1)
    assert rank_groups(MESH, ["tensor"]) == [[r, r + 1] for r in range(0, 16, 2)]
    assert rank_groups(MESH, ["data"]) == [[r, r + 8] for r in range(8)]
    assert rank_groups(MESH, ["stage"]) == [[r, r + 4] for r in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert rank_groups(MESH, ["data", "context"])[0] == [0, 2, 8, 10]
    assert rank_groups({}, []) == [[0]]


@pytest.mark.parametrize(
    ("sizes", "axes", "group"),
    [
        (dict(data=8, tensor=8), ["tensor"], Group(8, 8, 8)),
        (dict(data=8, tensor=8), ["data"], Group(8, 1, 1)),
        (dict(data=8, tensor=4), ["data"], Group(8, 2, 2)),
        (dict(data=2, tensor=16), ["tensor"], Group(16, 8, 8)),
        (dict(data=4, tensor=6), ["tensor"], Group(6, 2, 2)),  # groups of 6 do not fit nodes of 8
        (dict(data=2, stage=2, tensor=2), ["data", "tensor"], Group(4, 4, 4)),
        (dict(data=64), ["data"], Group(64, 8, 8)),
        (dict(data=64), [], ALONE),
    ],
)
def test_who_shares_a_node(sizes: dict[str, int], axes: list[str], group: Group) -> None:
    assert group_of(sizes, axes, cluster("h100_roce")) == group


def test_every_group_has_as_many_neighbours_as_said() -> None:
    """Counted from the rank groups themselves."""
    for sizes in (MESH, dict(a=4, b=3, c=4), dict(a=2, b=6), dict(a=16, b=2, c=2)):
        for axes in (["a"], ["b"], ["a", "c"], ["tensor"], ["data", "tensor"], ["stage", "context"]):
            if not set(axes) <= set(sizes):
                continue
            said = group_of(sizes, axes, cluster("h100_roce")).in_node
            for group in rank_groups(sizes, axes):
                for node in {rank // 8 for rank in group}:
                    assert sum(rank // 8 == node for rank in group) % said == 0


def test_which_link() -> None:
    h100 = ideal("h100_roce")
    assert wire(Group(8, 8, 8), h100).link == "fast"
    assert wire(Group(8, 1, 1), h100) == wire(Group(16, 1, 1), h100)
    assert wire(Group(8, 1, 1), h100).rate == 50e9
    assert wire(Group(16, 8, 8), h100).rate == 400e9  # eight adapters a node, a little slower than NVLink
    l40s = ideal("l40s_pcie")
    assert wire(Group(4, 1, 4), l40s).link == "node"
    assert wire(Group(16, 1, 8), l40s).rate == 32e9  # PCIe inside is slower than the node's adapters


def test_seconds_of_rings() -> None:
    """THEORY 3: an all_reduce of 268.4 MB over 8 GPUs."""
    h100, array = ideal("h100_roce"), 8192 * 16384 * 2
    fast, network = Group(8, 8, 8), Group(8, 1, 1)
    assert 2 * collective_seconds("all_reduce", array, fast, h100) == pytest.approx(2.09e-3, rel=0.003)
    assert 2 * collective_seconds("all_reduce", array, network, h100) == pytest.approx(18.79e-3, rel=0.003)
    for kinds in (("all_gather", "reduce_scatter"), ("reduce_scatter", "all_to_all")):
        parts = sum(collective_seconds(kind, array, fast, h100) for kind in kinds)
        assert parts == pytest.approx(collective_seconds("all_reduce", array, fast, h100))
    assert collective_seconds("permute", 450e9, fast, h100) == pytest.approx(1)
    assert collective_seconds("all_reduce", array, ALONE, h100) == 0


def test_latency_and_shares_count() -> None:
    slow = replace(ideal("h100_roce"), fast=Link(GB_per_s(450), seconds(1)))
    assert collective_seconds("all_reduce", 8, Group(8, 8, 8), slow) == pytest.approx(14)
    assert collective_seconds("permute", 8, Group(8, 8, 8), slow) == pytest.approx(1)
    real, best = cluster("h100_roce"), ideal("h100_roce")
    assert wire(Group(8, 8, 8), real).rate == real.share("fast") * wire(Group(8, 8, 8), best).rate
    assert isinstance(real.fast.rate, ByteRate)
