"""The decoder in three parts, for a pipeline: the embedding, a piece of the stack of layers, and the loss.

The first dense layers of a model with experts run with the embedding, in the first stage; dense layers between those
with experts run, and travel, with the layer behind them.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.errors import InputError
from meshtrain.layout import ArraySpec, Placement, Tree, map_specs
from meshtrain.model.block import run_dense_layers, run_layers
from meshtrain.model.config import ModelConfig
from meshtrain.model.decoder import Batch, Params, embed, finish, output_loss, split_dense
from meshtrain.model.inputs import make_inputs
from meshtrain.parallel.cross_entropy import LossSums
from meshtrain.parallel.pipeline.worker import Stages

BETWEEN = "between"  # in the layers of a piece: the dense ones before each layer with experts [layer, number, ..]


def pipeline_stages(
    config: ModelConfig,
    place: Placement,
    *,
    z_loss: float = 0.0,
    dropout_key: jax.Array | None = None,
    scale: jax.Array | float = 1.0,
    load: jax.Array | None = None,
    router_scale: jax.Array | float = 1.0,
) -> Stages:
    """The functions that a pipeline runs; together they compute `all_sums`, and to differentiate `scale` times the loss
    and `router_scale` times that of the routers. load: as in `all_sums`. Their weights are those of `stage_weights`.

    InputError where a pattern of layers does not repeat evenly within the pieces.
    """
    moe = config.moe
    _check_pattern(config, place)

    def first(rest: Params, batch: Batch) -> jax.Array:
        given = make_inputs(batch, config, place, dropout_key)
        x_BTD = embed(rest, config, batch, given)
        dense, _ = split_dense(rest, config)
        return x_BTD if dense is None else run_dense_layers(dense, x_BTD, config, given)

    def piece(layers: Params, x_BTD: jax.Array, batch: Batch, ids: jax.Array) -> Any:
        given = make_inputs(batch, config, place, dropout_key, load)
        count = (ids >= 0).sum() if uneven else None
        start = ids[0] if moe is None else ids[0] * moe.every + moe.first_dense
        own = {name: tree for name, tree in layers.items() if name != BETWEEN}
        dense = jax.tree.map(lambda w: w.reshape(-1, *w.shape[2:]), layers.get(BETWEEN))
        x_BTD, routers = run_layers(own, x_BTD, config, given, first=start, count=count, dense=dense)
        return x_BTD if routers is None else (x_BTD, routers.loss.sum() * router_scale, routers)

    def last(rest: Params, x_BTD: jax.Array, batch: Batch) -> tuple[jax.Array, LossSums]:
        sums = output_loss(rest, config, finish(rest, config, x_BTD, place), batch, place, z_loss=z_loss)
        return sums.loss_sum * scale, sums

    uneven = bool((_ids(config, place) < 0).any())
    return Stages(first, piece, last, moe is not None)


def stage_weights(params: Params, config: ModelConfig, place: Placement) -> tuple[Tree, Tree]:
    """(the layers, in the order of the devices, all other weights) of weights as the model has them."""
    rest = {name: tree for name, tree in params.items() if name != "layers"}
    first, between = split_dense(params, config)
    if between is None:
        return params["layers"], rest
    assert config.moe is not None
    each = config.moe.every - 1
    slots = np.maximum(_ids(config, place).ravel(), 0)  # (a slot without a layer may hold anything)
    grouped = jax.tree.map(lambda w: w.reshape(-1, each, *w.shape[1:])[slots], between)
    rest = {name: tree for name, tree in rest.items() if name != "dense_layers"}
    return {**params["layers"], BETWEEN: grouped}, rest if first is None else {**rest, "dense_layers": first}


def stage_specs(specs: Tree, config: ModelConfig) -> Tree:
    """ArraySpec of the weights, those between the layers with experts among the layers, too."""
    if config.moe is None or config.moe.every == 1:
        return specs
    each = config.moe.every - 1

    def grouped(spec: ArraySpec) -> ArraySpec:
        shape, dims = (config.num_stacked, each, *spec.shape[1:]), ("layers", "slot", *spec.dims[1:])
        return replace(spec, shape=shape, dims=dims)

    return {**specs, "layers": {**specs["layers"], BETWEEN: map_specs(grouped, specs["dense_layers"])}}


def model_gradients(of_layers: Tree, of_rest: Tree, config: ModelConfig, place: Placement) -> Tree:
    """The gradients as the model has its weights, from those of `stage_weights`."""
    if BETWEEN not in of_layers:
        return {**of_rest, "layers": of_layers}
    slots = model_slots(_ids(config, place))
    dense = jax.tree.map(lambda g: g[slots].reshape(-1, *g.shape[2:]), of_layers[BETWEEN])
    if "dense_layers" in of_rest:
        dense = jax.tree.map(lambda *parts: jnp.concatenate(parts), of_rest["dense_layers"], dense)
    layers = {name: tree for name, tree in of_layers.items() if name != BETWEEN}
    return {**of_rest, "layers": layers, "dense_layers": dense}


def model_slots(ids: np.ndarray) -> np.ndarray:
    """int [layer]: the slot of each layer of the model, for ids as `Placement.layer_ids` gives them."""
    return np.argsort(ids.ravel(), kind="stable")[(ids < 0).sum() :]


def _ids(config: ModelConfig, place: Placement) -> np.ndarray:
    ids = place.layer_ids(config.num_stacked)
    assert ids is not None
    return ids


def _check_pattern(config: ModelConfig, place: Placement) -> None:
    """InputError where the pattern of layers does not fit the pieces, or the first layers not the way of attention."""
    ids, moe = _ids(config, place), config.moe
    if moe is not None and moe.first_dense and place.axes("length") and place.layout.attention in ("ring", "usp"):
        raise InputError(
            f"attention: the first {moe.first_dense} dense layers (model.moe.first_dense) run in the first stage alone,"
            f" where keys cannot go round ({place.layout.attention!r}). attention='gather' or 'ulysses' would work."
        )
    counts, period = (ids >= 0).sum(axis=2), len(config.window_layers)
    if (counts % period).any() or ids.shape[2] % period:
        raise InputError(
            f"pipeline.layers: pieces of {sorted(set(counts.ravel().tolist()))} layers, but the pattern of"
            f" model.window_layers is {period} layers long and must repeat evenly within each; declare pipeline.layers"
            f" with multiples of {period}, or fewer pieces."
        )
