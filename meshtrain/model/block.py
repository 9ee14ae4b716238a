"""One layer: attention and MLP, each with its norm, added to the residual stream. And the scan over all layers.

    x = x + attention(norm(x));   x = x + mlp(norm(x))          with post_norms: x + norm(attention(norm(x))), ...

Between sublayers the stream lies as (batch, stream, embed), inside them as (batch, length, ...): where a layout shards
`stream` the compiler gathers on the way in and scatters the sum on the way out (Megatron's sequence parallelism).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from meshtrain.layout import Placement
from meshtrain.model import dropout
from meshtrain.model.attention import Attention
from meshtrain.model.config import ModelConfig
from meshtrain.model.inputs import Inputs
from meshtrain.model.latent import LatentAttention
from meshtrain.model.mlp import Mlp
from meshtrain.model.norm import Norm
from meshtrain.model.remat import rematerialize


class Block(nnx.Module):
    """The weights of one layer and what it computes."""

    def __init__(self, config: ModelConfig):
        self.attention_norm = embed_norm(config)
        self.attention = Attention(config) if config.latent is None else LatentAttention(config)
        self.attention_post_norm = embed_norm(config) if config.post_norms else None
        self.mlp_norm = embed_norm(config)
        self.mlp = Mlp(config)
        self.mlp_post_norm = embed_norm(config) if config.post_norms else None

    def __call__(
        self, x_BTD: Float[Array, "B T D"], given: Inputs, layer: jax.Array | int, window: int | None
    ) -> Float[Array, "B T D"]:
        place = given.place

        def add(y_BTD: jax.Array, post_norm: Norm | None, site: int) -> jax.Array:
            y_BTD = y_BTD if post_norm is None else post_norm(y_BTD, place)
            y_BTD = y_BTD if given.dropout is None else given.dropout(y_BTD, layer, site)
            return place.constrain(x_BTD + y_BTD, "batch", "stream", "embed")

        h_BTD = into_sublayer(self.attention_norm(x_BTD, place), place)
        y_BTD = self.attention(h_BTD, given, window)
        x_BTD = checkpoint_name(add(y_BTD, self.attention_post_norm, dropout.ATTENTION), "stream")
        h_BTD = into_sublayer(self.mlp_norm(x_BTD, place), place)
        return add(self.mlp(h_BTD, place), self.mlp_post_norm, dropout.MLP)


def into_sublayer(h_BTD: Float[Array, "B T D"], place: Placement) -> Float[Array, "B T D"]:
    """A normed stream with its positions as a sublayer has them. Placed as the stream first: else the compiler gathers
    the norm's float32 result, and rounds it behind the gather."""
    return place.constrain(place.constrain(h_BTD, "batch", "stream", "embed"), "batch", "length", "embed")


def embed_norm(config: ModelConfig) -> Norm:
    """A norm over the residual stream."""
    return Norm(config.embed, "embed", config.norm, config.norm_eps, config.norm_plus_one)


def run_layers(
    layers: dict[str, Any],
    x_BTD: Float[Array, "B T D"],
    config: ModelConfig,
    given: Inputs,
    first: jax.Array | int = 0,
    count: jax.Array | None = None,
) -> Float[Array, "B T D"]:
    """x after a stack of layers. `layers`: the stacked weights, as in params["layers"]; `first`: the number of the
    stack's first layer in the whole model (it is a multiple of the pattern's length), which dropout's masks depend on.
    With `count` only so many of the stack's first layers are real: the slots behind them are passed over.
    """
    graph, _ = nnx.split(Block(config))
    period = len(config.window_layers)

    def one(x_BTD: jax.Array, weights: dict[str, Any], layer: jax.Array, window: int | None) -> jax.Array:
        return nnx.merge(graph, weights)(x_BTD, given, layer, window)

    def group(x_BTD: jax.Array, scanned: tuple[dict[str, Any], jax.Array]) -> tuple[jax.Array, None]:
        weights, start = scanned
        for step in range(period):
            step_weights = weights if period == 1 else jax.tree.map(lambda w, i=step: w[i], weights)
            window = config.layer_window(step)
            layer = rematerialize(lambda x, w, n, window=window: one(x, w, n, window), given.place.layout.remat)
            x_BTD = layer(x_BTD, step_weights, start + step)
        return x_BTD, None

    num_layers = jax.tree.leaves(layers)[0].shape[0]
    if period > 1:
        layers = jax.tree.map(lambda w: w.reshape(num_layers // period, period, *w.shape[1:]), layers)
    starts = first + jnp.arange(0, num_layers, period, dtype=jnp.int32)
    num_real = num_layers if count is None else count

    def group_if_real(x_BTD: jax.Array, scanned: tuple[dict[str, Any], jax.Array]) -> tuple[jax.Array, None]:
        real = scanned[1] - first < num_real
        if given.place.axes("length"):  # devices must not part ways around the exchange of keys: compute, and mask
            return jnp.where(real, group(x_BTD, scanned)[0], x_BTD), None
        same = lambda x_BTD, _: (given.place.constrain(x_BTD, "batch", "stream", "embed"), None)  # noqa: E731
        return jax.lax.cond(real, group, same, x_BTD, scanned)

    return jax.lax.scan(group if count is None else group_if_real, x_BTD, (layers, starts))[0]
