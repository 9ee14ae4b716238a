"""The decoder, whole: what its weights are, how they start, and what it makes of a batch.

Weights are plain nested dicts, such as params["layers"]["attention"]["query"]; those of the layers are stacked, with a
leading dim "layers". The dtype of the weights that are given is the dtype of the computation; norms, rotations, softmax
statistics and the loss are float32 throughout.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.model import weight
from meshtrain.model.block import Block, embed_norm, run_dense_layers, run_layers
from meshtrain.model.config import ModelConfig
from meshtrain.model.dropout import EMBEDDING
from meshtrain.model.inputs import Inputs, make_inputs
from meshtrain.model.losses import RouterSums
from meshtrain.parallel.cross_entropy import LossSums, cross_entropy
from meshtrain.parallel.embedding import embed_tokens

Params = dict[str, Any]
Batch = Mapping[str, jax.Array]


class Table(nnx.Module):
    """Rows of the residual stream's width, one per entry of `dim`."""

    def __init__(self, size: int, dim: str, config: ModelConfig):
        self.table = weight.weight((size, config.embed), (dim, "embed"), weight.normal(config.init_std))


class Decoder(nnx.Module):
    """The weights outside the layers."""

    def __init__(self, config: ModelConfig):
        self.embedding = Table(config.vocab, "vocab", config)
        self.positions = Table(config.max_length, "position", config) if config.positions == "learned" else None
        self.final_norm = embed_norm(config)
        self.output = None if config.tied else Table(config.vocab, "vocab", config)


def describe(config: ModelConfig) -> Params:
    """The tree of ArraySpec (float32, logical shapes) of the weights. Allocates nothing."""
    found = {**weight.specs(Decoder(config)), "layers": weight.specs(Block(config, config.moe), config.num_stacked)}
    if num_dense := config.num_layers - config.num_stacked:
        found["dense_layers"] = weight.specs(Block(config, None), num_dense, "dense_layers")
    return found


def initialize(config: ModelConfig, key: jax.Array) -> Params:
    """The first weights, float32, in the shapes of `describe`; each depends on the key and its own path alone."""
    layers = weight.draw(Block(config, config.moe), key, "layers", config.num_stacked)
    found = {**weight.draw(Decoder(config), key), "layers": layers}
    if num_dense := config.num_layers - config.num_stacked:
        found["dense_layers"] = weight.draw(Block(config, None), key, "dense_layers", num_dense)
    return found


def hidden_states(
    params: Params, config: ModelConfig, batch: Batch, place: Placement, *, dropout_key: jax.Array | None = None
) -> Float[Array, "B T D"]:
    """What the last layer says of each position, after the final norm. Dropout only where a key is given."""
    return _states(params, config, batch, place, dropout_key, None)[0]


def _states(
    params: Params, config: ModelConfig, batch: Batch, place: Placement, dropout_key: jax.Array | None,
    load: jax.Array | None,
) -> tuple[jax.Array, RouterSums | None]:  # fmt: skip
    given = make_inputs(batch, config, place, dropout_key, load)
    x_BTD = embed(params, config, batch, given)
    first, dense = split_dense(params, config)
    if first is not None:
        x_BTD = run_dense_layers(first, x_BTD, config, given)
    start = config.moe.first_dense if config.moe is not None else 0
    x_BTD, routers = run_layers(params["layers"], x_BTD, config, given, start, dense=dense)
    return finish(params, config, x_BTD, place), routers


def split_dense(params: Params, config: ModelConfig) -> tuple[Params | None, Params | None]:
    """The stacks of dense layers: the first ones of the model, and those between layers with experts."""
    moe, stack = config.moe, params.get("dense_layers")
    if moe is None or stack is None:
        return None, None
    num = moe.first_dense
    first = jax.tree.map(lambda w: w[:num], stack) if num else None
    return first, jax.tree.map(lambda w: w[num:], stack) if moe.every > 1 else None


def loss_sums(
    params: Params,
    config: ModelConfig,
    batch: Batch,
    place: Placement,
    *,
    z_loss: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> LossSums:
    """Sums over the batch's counted tokens (labels >= 0) of the loss and its parts, and their number."""
    return all_sums(params, config, batch, place, z_loss=z_loss, dropout_key=dropout_key)[0]


def all_sums(
    params: Params,
    config: ModelConfig,
    batch: Batch,
    place: Placement,
    *,
    z_loss: float = 0.0,
    dropout_key: jax.Array | None = None,
    load: jax.Array | None = None,
) -> tuple[LossSums, RouterSums | None]:
    """`loss_sums`, and the sums of the routers [MoE layer, ..] where the model has experts.

    load: pairs of the global batch by [MoE layer, expert]; None: this batch is the global one (losses.py).
    """
    x_BTD, routers = _states(params, config, batch, place, dropout_key, load)
    return output_loss(params, config, x_BTD, batch, place, z_loss=z_loss), routers


def embed(params: Params, config: ModelConfig, batch: Batch, given: Inputs) -> Float[Array, "B T D"]:
    """The residual stream before the first layer."""
    place = given.place
    table = place.at_use(params["embedding"]["table"], "vocab", "embed")
    x_BTD = embed_tokens(table, batch["tokens"], place)
    if config.embed_scale != 1:
        x_BTD = x_BTD * jnp.asarray(config.embed_scale, x_BTD.dtype)
    if config.positions == "learned":
        if x_BTD.shape[1] > config.max_length:
            raise InputError(
                f"model.max_length: sequences of {x_BTD.shape[1]} tokens are longer than the {config.max_length}"
                f" learned positions. A length of {config.max_length} would work."
            )
        # float32, so that the rows' gradients are summed over the batch in float32.
        rows_PD = place.at_use(params["positions"]["table"], "position", "embed").astype(jnp.float32)
        x_BTD = x_BTD + rows_PD[given.positions].astype(x_BTD.dtype)
    if given.dropout is not None:
        x_BTD = given.dropout(x_BTD, -1, EMBEDDING)
    return place.constrain(x_BTD, "batch", "stream", "embed")


def finish(
    params: Params, config: ModelConfig, x_BTD: Float[Array, "B T D"], place: Placement
) -> Float[Array, "B T D"]:
    """The final norm."""
    graph, _ = nnx.split(embed_norm(config))
    return place.constrain(nnx.merge(graph, params["final_norm"])(x_BTD, place), "batch", "stream", "embed")


def output_loss(
    params: Params,
    config: ModelConfig,
    x_BTD: Float[Array, "B T D"],
    batch: Batch,
    place: Placement,
    *,
    z_loss: float = 0.0,
) -> LossSums:
    """The loss sums of normed hidden states; the output matrix is the embedding table where the model is tied."""
    table = place.at_use(params["embedding" if config.tied else "output"]["table"], "vocab", "embed")
    return cross_entropy(
        x_BTD,
        table,
        batch["labels"],
        num_vocab=config.vocab,
        softcap=config.logit_softcap,
        z_loss=z_loss,
        place=place,
    )
