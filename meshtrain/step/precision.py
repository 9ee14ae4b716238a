"""Which number formats a run computes in: masters and moments are float32, the copy that computes is what is declared.

The copy is converted once a step, outside the loop over layers, and lives in the layout's `params` rows: what travels
between devices in ZeRO-3 are compute-dtype bytes.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from meshtrain.errors import one_of
from meshtrain.layout import ArraySpec, Placement, Tree, map_specs

COMPUTE = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclass(frozen=True)
class Precision:
    """compute: dtype of weights and activations in the forward and backward pass, "float32" or "bfloat16".

    Softmax, norms' statistics, rotary phases, routers, the loss, sums of gradients over microbatches and the update are
    float32 in both. (Between devices a gradient that is not summed so travels in the compute dtype.)
    """

    compute: str = "float32"

    def __post_init__(self) -> None:
        one_of("precision.compute", self.compute, COMPUTE)

    @property
    def dtype(self) -> np.dtype:
        """The compute dtype."""
        return np.dtype(COMPUTE[self.compute])

    def compute_specs(self, specs: Tree) -> Tree:
        """Specs of the copy that computes, from those of the masters."""
        return map_specs(lambda spec: ArraySpec(spec.shape, self._dtype_of(spec), spec.dims), specs)

    def _dtype_of(self, spec: ArraySpec) -> np.dtype:
        """float32 for the weights of routers, of which small differences decide who goes where."""
        return np.dtype(np.float32) if "router" in spec.dims else self.dtype

    def compute_copy(self, masters: Tree, specs: Tree, place: Placement) -> Tree:
        """The weights that compute, from the float32 masters: converted first, then moved to the `params` rows."""
        copy = map_specs(lambda spec, x: x.astype(self._dtype_of(spec)), specs, masters)
        copy = place.constrain_tree("optimizer", copy, specs)
        return place.constrain_tree("params", copy, specs)
