"""The decoder in three parts, for a pipeline: the embedding, a piece of the stack of layers, and the loss."""

import jax

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.model.block import run_layers
from meshtrain.model.config import ModelConfig
from meshtrain.model.decoder import Batch, Params, embed, finish, output_loss
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
) -> Stages:
    """The functions that a pipeline runs; together they compute `loss_sums`, and `scale` times its loss to
    differentiate. InputError where a pattern of windows does not repeat evenly within the pieces."""

    def first(rest: Params, batch: Batch) -> jax.Array:
        return embed(rest, config, batch, make_inputs(batch, config, place, dropout_key))

    def piece(layers: Params, x_BTD: jax.Array, batch: Batch, ids: jax.Array) -> jax.Array:
        given = make_inputs(batch, config, place, dropout_key)
        count = (ids >= 0).sum() if uneven else None
        return run_layers(layers, x_BTD, config, given, first=ids[0], count=count)[0]

    def last(rest: Params, x_BTD: jax.Array, batch: Batch) -> tuple[jax.Array, LossSums]:
        sums = output_loss(rest, config, finish(rest, config, x_BTD, place), batch, place, z_loss=z_loss)
        return sums.loss_sum * scale, sums

    ids = place.layer_ids(config.num_layers)
    assert ids is not None
    counts, period = (ids >= 0).sum(axis=2), len(config.window_layers)
    if (counts % period).any() or ids.shape[2] % period:
        raise InputError(
            f"pipeline.layers: pieces of {sorted(set(counts.ravel().tolist()))} layers, but the pattern of"
            f" model.window_layers is {period} layers long and must repeat evenly within each; declare pipeline.layers"
            f" with multiples of {period}, or fewer pieces."
        )
    uneven = bool((ids < 0).any())
    return Stages(first, piece, last)
