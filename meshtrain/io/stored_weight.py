"""One weight of a checkpoint on the host, whole, with no device and no jax: what an export reads, one at a time."""

from typing import Any

import numpy as np

from meshtrain.errors import InputError, StorageError, first_line
from meshtrain.io.checkpoint import PARAMS
from meshtrain.io.checkpoint_folder import ARRAYS, Saved
from meshtrain.layout import ArraySpec


def read_weight(saved: Saved, path: str, spec: ArraySpec) -> np.ndarray:
    """The weight's numbers in logical shape; InputError where the checkpoint has no such weight of this shape."""
    import tensorstore

    name = f"{PARAMS}/{path}"
    if saved.arrays.get(name) != (tuple(spec.shape), np.dtype(spec.dtype).name):
        held = saved.arrays.get(name, "nothing")
        raise InputError(f"{saved.folder}: expected {name} as {spec.dtype}{list(spec.shape)}; it holds {held}.")
    base = {"driver": "file", "path": f"{saved.folder / ARRAYS}/"}  # not a URL, in which some characters mean others
    store: dict[str, Any] = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    try:
        opened = tensorstore.open({"driver": "zarr", "kvstore": store}, open=True, read=True).result()
        return np.asarray(opened.read().result())
    except (OSError, ValueError) as error:
        raise StorageError(f"{saved.folder}: {name} could not be read: {first_line(error)}") from error
