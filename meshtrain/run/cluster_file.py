"""Cluster files (`--cluster FILE`): plain Python with `get_config()`, as runs and layouts are."""

from dataclasses import replace
from pathlib import Path

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.quantity import read_price
from meshtrain.errors import InputError
from meshtrain.io.home import expanded
from meshtrain.run import config_file


def read_cluster(path: str, flag: str = "--cluster", price: str | None = None) -> Cluster:
    """The cluster that a file describes. price: of a GPU and hour, in place of the file's, with its unit.

    InputError names the file, the line and a form that is right.
    """
    if not Path(path).suffix and not expanded(path, flag).exists():
        form = f"{flag} configs/clusters/{Path(path).name}.py"
        raise InputError(f"{flag}={path}: there is no such file; a cluster is named by its file, such as {form}.")
    file = config_file.read(path, flag)
    try:
        cluster = Cluster.parse(file.values, Path(path).stem, file.doc)
    except InputError as error:
        raise InputError(f"{flag}={path}: {error}") from None
    return cluster if price is None else replace(cluster, price=read_price(price, "--price"))
