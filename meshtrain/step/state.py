"""The training state: float32 masters, the optimizer's moments and two counters, all in the layout's `optimizer` rows.

The state holds no second copy of the weights: the copy that computes is made from the masters at the start of a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import ArraySpec, Placement, Tree, map_specs
from meshtrain.layout.padding import arrange_tree, pad_tree, physical_specs, rearranges
from meshtrain.model import ModelConfig, describe, initialize
from meshtrain.step.optimizer import OptimizerConfig, make_optimizer, optimizer_specs


@jax.tree_util.register_dataclass
@dataclass
class TrainState:
    """params: float32 masters. opt_state: optax's. step: steps done. num_skipped: steps that changed nothing."""

    params: Tree
    opt_state: Tree
    step: Any
    num_skipped: Any


def state_specs(model: ModelConfig, optimizer: OptimizerConfig) -> TrainState:
    """ArraySpec of every array of the state, in logical shapes: what a checkpoint holds, under any layout."""
    specs = describe(model)
    counter = ArraySpec((), np.dtype(np.int32), ())
    return TrainState(specs, optimizer_specs(make_optimizer(optimizer, specs), specs), counter, counter)


def state_shardings(specs: TrainState, place: Placement) -> TrainState:
    """NamedSharding of every array of the state on this placement."""
    return place.shardings("optimizer", physical_specs(specs, place))


def initial_state(
    model: ModelConfig, optimizer: OptimizerConfig, seed: int, place: Placement, params: Tree | None = None
) -> TrainState:
    """The state before the first step, made on the devices. Its logical values are the same under every layout.

    params: weights that there are already, as they lie on the devices; then none are made.
    """
    if params is None:
        return make_initializer(model, optimizer, place)(np.uint32(seed))
    specs = state_specs(model, optimizer)
    shardings = state_shardings(specs, place)
    transformation = make_optimizer(optimizer, specs.params)

    def around(params: Tree) -> tuple[Tree, jax.Array, jax.Array]:
        zero = jnp.zeros((), jnp.int32)
        return transformation.init(params), zero, zero

    out = (shardings.opt_state, shardings.step, shardings.num_skipped)
    return TrainState(params, *jax.jit(around, out_shardings=out)(params))


def make_initializer(model: ModelConfig, optimizer: OptimizerConfig, place: Placement) -> Callable[..., TrainState]:
    """The compiled function seed -> initial state."""
    specs = state_specs(model, optimizer)

    def initializer(seed: jax.Array) -> TrainState:
        params = pad_tree(initialize(model, jax.random.key(seed)), specs.params, place)
        transformation = make_optimizer(optimizer, specs.params)
        zero = jnp.zeros((), jnp.int32)
        return TrainState(params, transformation.init(params), zero, zero)

    return jax.jit(initializer, out_shardings=state_shardings(specs, place))


def abstract_state(specs: TrainState, place: Placement) -> TrainState:
    """The state as ShapeDtypeStruct with shardings: what the step is compiled for without allocating anything."""
    return map_specs(
        lambda spec, sharding: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding),
        physical_specs(specs, place),
        state_shardings(specs, place),
    )


def make_device_order(specs: Tree, place: Placement, *, back: bool = False) -> Callable[[Tree], Tree]:
    """The function that brings the layers of the state's arrays from the model's order to that of the devices.

    With `back` the other way. Shapes are physical on both sides. A checkpoint holds the model's order: how a pipeline
    deals layers out concerns no file. Where the orders are the same, the function gives back what it was given.
    """
    if not rearranges(specs, place):
        return lambda tree: tree
    shardings = place.shardings("optimizer", physical_specs(specs, place))
    return jax.jit(lambda tree: arrange_tree(tree, specs, place, back=back), out_shardings=shardings)
