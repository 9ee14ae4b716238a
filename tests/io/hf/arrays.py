"""A folder's weights on one device or under a layout, and back from there to the host in logical shapes."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshtrain.io.hf import Folder, read_params
from meshtrain.layout import Placement, map_specs, named_specs, single_placement
from meshtrain.layout.padding import physical_specs
from meshtrain.model import describe

ROOT = Path(__file__).parents[3]


def read(folder: Folder, place: Placement | None = None) -> Any:
    """The folder's weights in the shardings of the optimizer's masters, in physical shapes."""
    place = place or single_placement()
    specs = describe(folder.model)
    targets = map_specs(
        lambda spec: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=place.sharding("optimizer", spec.dims, spec.shape)
        ),
        physical_specs(specs, place),
    )
    return read_params(folder, specs, targets, progress=False)


def logical(folder: Folder, params: Any) -> dict[str, np.ndarray]:
    """path -> numbers on the host, without padding."""
    specs = named_specs(describe(folder.model))
    return {
        path: np.asarray(x)[tuple(slice(size) for size in spec.shape)]
        for (path, spec), x in zip(specs, jax.tree.leaves(params), strict=True)
    }
