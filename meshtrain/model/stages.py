"""The decoder in three parts, for a pipeline: the embedding, a piece of the stack of layers, and the loss."""

from typing import Any

import jax

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.model.block import run_dense_layers, run_layers
from meshtrain.model.config import ModelConfig
from meshtrain.model.decoder import Batch, Params, embed, finish, output_loss, split_dense
from meshtrain.model.inputs import make_inputs
from meshtrain.parallel.cross_entropy import LossSums
from meshtrain.parallel.pipeline.worker import Stages


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
    and `router_scale` times that of the routers. load: as in `all_sums`.

    The first dense layers of a model with experts run with the embedding. InputError where a pattern of layers does not
    repeat evenly within the pieces.
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
        start = ids[0] if moe is None else ids[0] + moe.first_dense
        x_BTD, routers = run_layers(layers, x_BTD, config, given, first=start, count=count)
        return x_BTD if routers is None else (x_BTD, routers.loss.sum() * router_scale, routers)

    def last(rest: Params, x_BTD: jax.Array, batch: Batch) -> tuple[jax.Array, LossSums]:
        sums = output_loss(rest, config, finish(rest, config, x_BTD, place), batch, place, z_loss=z_loss)
        return sums.loss_sum * scale, sums

    ids = place.layer_ids(config.num_stacked)
    assert ids is not None
    uneven = bool((ids < 0).any())
    return Stages(first, piece, last, moe is not None)


def _check_pattern(config: ModelConfig, place: Placement) -> None:
    """InputError where the pattern of layers does not fit the pieces, or the first layers not the way of attention."""
    ids = place.layer_ids(config.num_stacked)
    assert ids is not None
    moe = config.moe
    if moe is not None and moe.every > 1:
        raise InputError(
            f"model.moe.every: a pipeline's pieces are stacks of equal layers, and here one of {moe.every} has experts."
            " model.moe.every=1 would work, or pipeline=None."
        )
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
