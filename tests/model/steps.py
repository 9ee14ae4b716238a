"""One compiled training function for each (config, policy), shared by the tests: compiling is what takes their time."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshtrain.layout import Placement, single_placement
from meshtrain.model import ModelConfig, hidden_states
from meshtrain.model.decoder import output_loss

# The numbers are the same to rounding, and the compiler needs half the time.
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}


def remat(policy: str) -> Placement:
    """One device and a remat policy."""
    place = single_placement()
    return dataclasses.replace(place, layout=dataclasses.replace(place.layout, remat=policy))


@functools.cache
def states_and_gradients(
    config: ModelConfig, policy: str = "none", dropout: bool = False
) -> Callable[..., tuple[tuple[jax.Array, jax.Array], Any]]:
    """jitted (params, batch, key) -> ((loss sum, states after the final norm), gradients)."""
    place = remat(policy)

    def loss(params: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        dropout_key = key if dropout else None
        states = hidden_states(params, config, batch, place, dropout_key=dropout_key)
        return output_loss(params, config, states, batch, place).loss_sum, states

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)


def run(params: Any, config: ModelConfig, batch: Any, policy: str = "none") -> tuple[jax.Array, np.ndarray, Any]:
    """(loss sum, states, gradients), without dropout."""
    (loss, states), gradients = states_and_gradients(config, policy)(params, batch, jax.random.key(0))
    return loss, np.asarray(states), gradients
