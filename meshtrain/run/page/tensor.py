"""Tensor parallelism for this run's layer: seconds of its products against its exchange, by degree and link."""

from typing import Any

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.quantity import FlopRate
from meshtrain.cost.split import split_of
from meshtrain.cost.tables import TensorRow, tensor_table
from meshtrain.run.config import RunConfig
from meshtrain.run.plan.report import PlanReport

DEGREES = (2, 4, 8, 16)


def tensor_section(config: RunConfig, report: PlanReport) -> dict[str, Any]:
    """The forward pass of one layer over one row on 1 to 16 devices, on each kind of link that the cluster has.

    Products at the rate that programs get of the cluster's peak, links at their full rate without latency.
    """
    cluster, model = report.cluster, config.model
    flops = FlopRate(cluster.peak_rate(config.precision.compute).value * cluster.share("matmul"))
    links = _links(cluster)
    cases = [(1, cluster.fast.rate), *((degree, cluster.link(link).rate) for link, _ in links for degree in DEGREES)]
    names = [None, *(link for link, _ in links for _ in DEGREES)]
    reach = dict(links)
    table = tensor_table(model, report.length, cases, flops, config.precision.dtype.itemsize)
    split = split_of(report.place, model, report.global_batch, report.length, cluster)
    return {
        "flops": flops.value,
        "tokens": report.length,
        "given": split.tensor.size,
        "rows": [_row(row, link, reach, model.num_heads) for row, link in zip(table, names, strict=True)],
        "reach": reach,
    }


def _links(cluster: Cluster) -> list[tuple[str, int | None]]:
    """(kind of link, how many devices it joins; None: any number), the nearest first."""
    found: list[tuple[str, int | None]] = []
    if cluster.fast_gpus > 1:
        found.append(("fast", cluster.fast_gpus))
    if cluster.gpus_per_node > cluster.fast_gpus:
        found.append(("node", cluster.gpus_per_node))
    return [*found, ("network", None)]


def _row(row: TensorRow, link: str | None, reach: dict[str, int | None], num_heads: int) -> dict[str, Any]:
    most = reach.get(link) if link else None
    return {
        "parts": row.parts,
        "link": link,
        "rate": row.rate.value if link else None,
        "compute": row.compute,
        "exchange": row.exchange,
        "reaches": most is None or row.parts <= most,
        "divides": num_heads % row.parts == 0,
    }
