"""Where a model fixes the sharding of an activation: read off by running its trace with a placement that takes notes.

So there is no second list of activations: what `constrain` is called with is what checks and tables see.
"""

import sys
from dataclasses import dataclass, field

import jax
import numpy as np

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.placement import Placement


@dataclass(frozen=True, eq=False)
class RecordingPlacement(Placement):
    """A placement that notes the activations that pass through it, each once, by the function that fixes them."""

    sites: dict[tuple[str, ArraySpec], None] = field(default_factory=dict)

    def constrain(self, x: jax.Array, *dims: str) -> jax.Array:
        """As in `Placement`, with a note."""
        self.sites.setdefault((_caller(), ArraySpec(tuple(x.shape), np.dtype(x.dtype), dims)))
        return super().constrain(x, *dims)

    def named_sites(self) -> tuple[tuple[str, ArraySpec], ...]:
        """(name, spec) in the order of the trace; names are made unique by a number."""
        count: dict[str, int] = {}
        named = []
        for name, spec in self.sites:
            count[name] = count.get(name, 0) + 1
            named.append((name if count[name] == 1 else f"{name}.{count[name]}", spec))
        return tuple(named)


def _caller() -> str:
    """`attention/project`: the module and function that called `constrain`; of a module's own call `mlp` alone."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not frame.f_globals.get("__name__", "").startswith("meshtrain."):
        frame = frame.f_back
    module = frame.f_globals.get("__name__", "").split(".")[-1]
    name = frame.f_code.co_name.strip("_")
    return module if name in ("call", module) else f"{module}/{name}"
