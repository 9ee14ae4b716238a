"""Cluster files (`--cluster FILE`): plain Python with `get_config()`, as runs and layouts are."""

from pathlib import Path

from meshtrain.cost.cluster import Cluster
from meshtrain.errors import InputError
from meshtrain.run import config_file


def read_cluster(path: str, flag: str = "--cluster") -> Cluster:
    """The cluster that a file describes. InputError names the file, the line and a form that is right."""
    file = config_file.read(path, flag)
    try:
        return Cluster.parse(file.values, Path(path).stem, file.doc)
    except InputError as error:
        raise InputError(f"{flag}={path}: {error}") from None
