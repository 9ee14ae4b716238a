"""One compiled training function for each case, shared by the tests: compiling is what takes their time."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshtrain.layout import Placement, single_placement
from meshtrain.model import ModelConfig, hidden_states
from meshtrain.model.decoder import output_loss
from tests.model.families import make_batch, make_params
from tests.quick import QUICK


def remat(policy: str) -> Placement:
    """One device and a remat policy."""
    place = single_placement()
    return dataclasses.replace(place, layout=dataclasses.replace(place.layout, remat=policy))


def training_function(config: ModelConfig, place: Placement, dropout: bool = False) -> Callable[..., Any]:
    """(params, batch, key) -> ((loss sum, states after the final norm), gradients)."""

    def loss(params: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        states = hidden_states(params, config, batch, place, dropout_key=key if dropout else None)
        return output_loss(params, config, states, batch, place).loss_sum, states

    return jax.value_and_grad(loss, has_aux=True)


@functools.cache
def compiled(config: ModelConfig, rows: int, length: int, policy: str = "none", dropout: bool = False) -> Any:
    """The training function on one device, compiled for batches of this size."""
    step = jax.jit(training_function(config, remat(policy), dropout), compiler_options=QUICK)
    batch = make_batch(config, [[length]] * rows, length)
    return step.lower(make_params(config), batch, jax.random.key(0)).compile()


def run(
    params: Any, config: ModelConfig, batch: Any, policy: str = "none", dropout_key: jax.Array | None = None
) -> tuple[jax.Array, np.ndarray, Any]:
    """(loss sum, states, gradients)."""
    step = compiled(config, *batch["tokens"].shape, policy, dropout_key is not None)
    key = jax.random.key(0) if dropout_key is None else dropout_key
    (loss, states), gradients = step(params, batch, key)
    return loss, np.asarray(states), gradients
