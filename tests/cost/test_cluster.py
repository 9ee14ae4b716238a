"""Cluster files: all are read, and each wrong line is named with a right one."""

from typing import Any

import pytest

from meshtrain.cost.cluster import LINKS, SHARES, Cluster, Link
from meshtrain.cost.quantity import ByteRate, GB_per_s, Gbit_per_s, seconds
from meshtrain.errors import InputError
from meshtrain.run.cluster_file import read_cluster
from tests.cost.clusters import FOLDER, NAMES, cluster


def values(**changes: Any) -> dict[str, Any]:
    shares = dict.fromkeys(SHARES, (0.8, "measured"))
    whole = dict(
        gpu="some GPU", gpus_per_node=8, fast_gpus=8, memory="80 GB", memory_rate="2 TB/s",
        peak=dict(bfloat16="312 TFLOP/s"), fast=dict(rate="300 GB/s one way per GPU", latency="5 us"),
        network=dict(rate="1600 Gb/s one way per node", latency="10 us"), shares=shares,
    )  # fmt: skip
    return {key: value for key, value in (whole | changes).items() if value != "left out"}


@pytest.mark.parametrize("name", NAMES)
def test_shipped_files(name: str) -> None:
    found = cluster(name)
    assert found.name == name
    assert len(found.doc) > 80
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 40
    for key in LINKS:
        assert isinstance(found.link(key).rate, ByteRate)
    assert all(share.source for share in found.shares.values())


def test_figures_of_the_theory() -> None:
    """Links as THEORY 3 has them."""
    h100, dgx2 = cluster("h100_roce"), cluster("dgx2_v100")
    assert (h100.fast.rate, h100.network.rate, h100.fast_gpus) == (GB_per_s(450), Gbit_per_s(400), 8)
    assert (dgx2.fast.rate * 2, dgx2.network.rate * 16, dgx2.fast_gpus) == (GB_per_s(300), GB_per_s(100), 16)


def test_a_node_without_fast_links() -> None:
    found = cluster("l40s_pcie")
    assert found.fast_gpus == 1
    assert found.fast == found.node
    assert Cluster.parse(values(), "mine").node == Cluster.parse(values(), "mine").fast


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(memory=80e9), "memory: 80000000000.0, a plain number, has no unit"),
        (dict(memory="left out"), "memory: None has no unit"),
        (dict(fast=dict(rate=450, latency="5 us")), "fast.rate: 450, a plain number, is not the speed of a link"),
        (dict(fast=dict(rate="450 GB/s one way per GPU")), "fast.latency: None has no unit"),
        (dict(fast=dict(speed="450 GB/s one way per GPU")), "fast: there is no key 'speed'"),
        (dict(network="left out"), "network: expected a link, network=dict"),
        (dict(fast="left out"), "node: expected a link"),
        (dict(gpus_per_node=True), "gpus_per_node: expected a whole number"),
        (dict(fast_gpus=3), "fast_gpus: 3 GPUs with fast links do not divide the 8 of a node.*fast_gpus=8 would work"),
        (dict(shares=dict(matmul=(0.8, "x"))), r"shares.memory: expected a share .*shares.memory=\(0.75"),
        (dict(shares=dict.fromkeys(SHARES, 0.8)), "shares.matmul: expected a share .* and its source"),
        (dict(shares=dict.fromkeys(SHARES, (1.2, "x"))), "above 0 and at most 1"),
        (dict(peak={}), "peak: expected a section"),
        (dict(peak=dict(bfloat16=312e12)), "peak.bfloat16: .* has no unit"),
        (dict(memry="80 GB"), "cluster mine: there is no key 'memry'. Did you mean 'memory'"),
        (dict(xla_flags="--a"), "xla_flags: expected a list"),
        (dict(price=2.5), "price: 2.5, a plain number, is no price"),
        (dict(failures=2.5), "failures: 2.5, a plain number, is no failure rate"),
    ],
)
def test_a_wrong_line_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Cluster.parse(values(**changes), "mine")


def test_code_cannot_leave_units_out_either() -> None:
    good = Cluster.parse(values(), "mine")
    with pytest.raises(InputError, match=r"memory: 80 is no Bytes"):
        Cluster(**{**vars(good), "memory": 80})
    with pytest.raises(InputError, match=r"peak.bfloat16: 989 is no FlopRate"):
        Cluster(**{**vars(good), "peak": {"bfloat16": 989}})
    with pytest.raises(InputError, match=r"rate: 450 is no ByteRate"):
        Link(450, seconds(1))  # type: ignore[arg-type]


def test_missing_dtypes_and_files() -> None:
    with pytest.raises(InputError, match=r"no figure for bfloat16; it has float16, float32"):
        cluster("dgx2_v100").peak_rate("bfloat16")
    with pytest.raises(InputError, match=r"there is no such file. Did you mean 'h100_roce.py'"):
        read_cluster(str(FOLDER / "h100_roc.py"))
