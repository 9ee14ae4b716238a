"""The shipped clusters by name, each read once; and with the links of the closed formulas."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from meshtrain.cost import Cluster, Link, Share
from meshtrain.cost.quantity import seconds
from meshtrain.run.cluster_file import read_cluster

FOLDER = Path(__file__).parents[2] / "configs" / "clusters"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


@lru_cache
def cluster(name: str) -> Cluster:
    return read_cluster(str(FOLDER / f"{name}.py"))


def ideal(name: str) -> Cluster:
    """A cluster whose links have no latency and give all that they promise: the closed forms of THEORY."""
    found = cluster(name)
    fast, node, network = (Link(found.link(key).rate, seconds(0)) for key in ("fast", "node", "network"))
    shares = {key: Share(1.0, "ideal") for key in found.shares}
    return replace(found, shares=shares, fast=fast, node=node, network=network)
