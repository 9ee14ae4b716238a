"""Fits the constants of the time model to measured steps, and prints how far every kind of run is off.

    python scripts/calibrate.py --cluster configs/clusters/a100_ib.py tests/cost/measured/*.csv
    python scripts/calibrate.py --fit --cluster configs/clusters/a100_ib.py tests/cost/measured/*.csv

Without --fit the shipped constants are held against the rows of the files. With it the constants below are fitted to
every third row of each file (the first, the fourth, ...; of files of at most 12 rows to all) and printed; both parts'
errors are shown. Each file counts by the square root of its rows, so that a large set does not drown the others.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from meshtrain.cost.cluster import Cluster, Link, Share
from meshtrain.cost.measured import Measured, read_measured
from meshtrain.cost.quantity import Seconds
from meshtrain.cost.software import MEGATRON_2022, Software
from meshtrain.run.cluster_file import read_cluster

# The constants that are fitted; all else is from data sheets or counted. Shares may be at most 1.
SHARES = ("matmul", "memory")
LATENCIES = ("fast",)
SOFTWARE = (
    "half_size", "host_layer", "host_collective", "host_output",
    "host_microbatch", "update_seconds",
)  # fmt: skip
SMALL = 12  # rows of a file that is fitted whole
LOOSE = 0.05  # relative error from which on a row counts by its error, not by its square: outliers do not lead


def constants(cluster: Cluster, software: Software) -> dict[str, float]:
    """The constants by name."""
    found = {f"shares.{key}": cluster.share(key) for key in SHARES}
    found |= {f"{key}.latency": cluster.link(key).latency.value for key in LATENCIES}
    return found | {key: getattr(software, key) for key in SOFTWARE}


def with_constants(values: dict[str, float], cluster: Cluster, software: Software) -> tuple[Cluster, Software]:
    """The cluster and the software with these constants."""
    shares = {
        key: Share(min(values.get(f"shares.{key}", share.value), 1.0), share.source)
        for key, share in cluster.shares.items()
    }
    fast = Link(cluster.fast.rate, Seconds(values["fast.latency"]))
    chosen: dict[str, Any] = {key: values[key] for key in SOFTWARE}
    return replace(cluster, shares=shares, fast=fast), replace(software, **chosen)


def fit(files: Sequence[Sequence[Measured]], cluster: Cluster, software: Software) -> tuple[Cluster, Software]:
    """The constants that make the weighted errors of log time least, near the ones that were given."""
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    start = constants(cluster, software)
    names = list(start)
    rows = [(row, len(rows) ** -0.25) for rows in files for row in rows]

    def residuals(logs: np.ndarray) -> np.ndarray:
        values = {name: math.exp(log) for name, log in zip(names, logs, strict=True)}
        machine, program = with_constants(values, cluster, software)
        errors = [weight * math.log1p(row.error(machine, program)) for row, weight in rows]
        return np.array(errors + list(0.01 * (logs - first)))

    first = np.log([start[name] for name in names])
    found = least_squares(residuals, first, loss="soft_l1", f_scale=LOOSE, max_nfev=30)
    return with_constants({n: math.exp(log) for n, log in zip(names, found.x, strict=True)}, cluster, software)


def thirds(rows: Sequence[Measured]) -> tuple[list[Measured], list[Measured]]:
    """(rows to fit, rows to test)."""
    if len(rows) <= SMALL:
        return list(rows), list(rows)
    return list(rows[::3]), [row for i, row in enumerate(rows) if i % 3]


def line(name: str, rows: Sequence[Measured], cluster: Cluster, software: Software) -> str:
    """Errors of rows, in percent."""
    errors = np.array([row.error(cluster, software) for row in rows]) * 100
    size = np.abs(errors)
    return (
        f"{name:<34}{len(rows):>5}{np.median(size):>9.2f}{size.mean():>8.2f}{np.quantile(size, 0.9):>8.1f}"
        f"{size.max():>8.1f}{np.median(errors):>8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", action="store_true", help="a line for each row")
    asked = parser.parse_args()
    cluster, software = read_cluster(asked.cluster), MEGATRON_2022
    measured = {path.stem: read_measured(path) for path in asked.files}
    if asked.fit:
        cluster, software = fit([thirds(rows)[0] for rows in measured.values()], cluster, software)
        for name, value in constants(cluster, software).items():
            print(f"{name:<20}{value:.4g}")
    print(f"{'error in %':<34}{'rows':>5}{'median':>9}{'mean':>8}{'90 %':>8}{'worst':>8}{'bias':>8}")
    for name, rows in measured.items():
        fitted, tested = thirds(rows)
        if len(rows) > SMALL:
            print(line(f"{name}, fitted third", fitted, cluster, software))
        print(line(f"{name}, {'the rest' if len(rows) > SMALL else 'all'}", tested, cluster, software))
        for row in rows if asked.rows else []:
            print(f"  {row.error(cluster, software):+8.1%}  {row}")


if __name__ == "__main__":
    main()
