"""One layer: attention and MLP, each with its norm, added to the residual stream. And the scan over all layers.

    x = x + attention(norm(x));   x = x + mlp(norm(x))          with post_norms: x + norm(attention(norm(x))), ...

Between sublayers the stream lies as (batch, stream, embed), inside them as (batch, length, ...): where a layout shards
`stream` the compiler gathers on the way in and scatters the sum on the way out (Megatron's sequence parallelism).
"""

from collections.abc import Callable
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
from meshtrain.model.losses import RouterSums, no_sums
from meshtrain.model.mlp import Mlp
from meshtrain.model.moe import Moe
from meshtrain.model.moe_config import MoEConfig
from meshtrain.model.norm import Norm
from meshtrain.model.remat import rematerialize
from meshtrain.model.slot import where_real


class Block(nnx.Module):
    """The weights of one layer and what it computes. With `moe` it has experts in place of the MLP."""

    def __init__(self, config: ModelConfig, moe: MoEConfig | None):
        self.attention_norm = embed_norm(config)
        self.attention = Attention(config) if config.latent is None else LatentAttention(config)
        self.attention_post_norm = embed_norm(config) if config.post_norms else None
        self.mlp_norm = embed_norm(config)
        self.mlp = Mlp(config) if moe is None else None
        self.moe = None if moe is None else Moe(config, moe)
        self.mlp_post_norm = embed_norm(config) if config.post_norms else None

    def __call__(
        self, x_BTD: Float[Array, "B T D"], given: Inputs, layer: jax.Array | int, window: int | None,
        load_E: jax.Array | None = None,
    ) -> tuple[Float[Array, "B T D"], RouterSums | None]:  # fmt: skip
        """(the stream behind the layer, the sums of its router). load_E: the layer's row of `given.load`."""
        place = given.place

        def add(y_BTD: jax.Array, post_norm: Norm | None, site: int) -> jax.Array:
            y_BTD = y_BTD if post_norm is None else post_norm(y_BTD, place)
            y_BTD = y_BTD if given.dropout is None else given.dropout(y_BTD, layer, site)
            return place.constrain(x_BTD + y_BTD, "batch", "stream", "embed")

        h_BTD = into_sublayer(self.attention_norm(x_BTD, place), place)
        y_BTD = self.attention(h_BTD, given, window)
        x_BTD = checkpoint_name(add(y_BTD, self.attention_post_norm, dropout.ATTENTION), "stream")
        h_BTD = self.mlp_norm(x_BTD, place)
        if self.moe is not None:  # (how its tokens are cut is for the exchange to say)
            y_BTD, sums = self.moe(place.constrain(h_BTD, "batch", "stream", "embed"), given, load_E)
        else:
            assert self.mlp is not None
            y_BTD, sums = self.mlp(into_sublayer(h_BTD, place), place), None
        return add(y_BTD, self.mlp_post_norm, dropout.MLP), sums


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
    dense: dict[str, Any] | None = None,
) -> tuple[Float[Array, "B T D"], RouterSums | None]:
    """(x after a stack of layers, their routers' sums [layer, ..] where they have experts).

    layers: the stacked weights, as in params["layers"]; first: the number of the stack's first layer in the whole model
    (a multiple of the pattern's length behind the first dense layers), which dropout's masks depend on. With `count`
    only so many of the stack's first layers are real: the slots behind them are passed over. dense: the stack of dense
    layers between those with experts (every n-th), as many before each of them.
    """
    moe = config.moe
    period = len(config.window_layers)
    run, run_dense = _one_layer(config, given, moe), _one_layer(config, given, None)
    stride = period if moe is None else period * moe.every

    def group(x_BTD: jax.Array, scanned: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        weights, dense, load, layer = scanned
        found = []
        for step in range(period):
            for number in range(0 if dense is None else moe.every - 1):  # type: ignore[union-attr]
                x_BTD, _ = run_dense(x_BTD, _pick(dense, number), layer + number, config.layer_window(0), None)
            at = layer + step + (0 if dense is None else moe.every - 1)  # type: ignore[union-attr]
            own = _pick(weights, step) if period > 1 else weights
            x_BTD, sums = run(x_BTD, own, at, config.layer_window(step), _pick(load, step))
            found.append(sums)
        return x_BTD, jax.tree.map(lambda *s: jnp.stack(s), *found)

    num_layers = jax.tree.leaves(layers)[0].shape[0]
    starts = first + stride * jnp.arange(num_layers // period, dtype=jnp.int32)
    load = _load_of(given, config, starts, period)
    if period > 1:
        layers = _grouped(layers, num_layers // period)
    scanned = (layers, _grouped(dense, num_layers // period), load, starts)
    num_real = num_layers if count is None else count

    def group_if_real(x_BTD: jax.Array, scanned: tuple[Any, ...]) -> tuple[jax.Array, Any]:
        real = (scanned[3] - first) // stride * period < num_real
        if given.place.axes("length"):  # devices must not part ways around the exchange of keys: compute, and mask
            y_BTD, sums = group(x_BTD, scanned)
            return jnp.where(real, y_BTD, x_BTD), jax.tree.map(lambda s: jnp.where(real, s, 0), sums)

        def same(x_BTD: jax.Array, _: Any) -> tuple[jax.Array, Any]:
            none = None if moe is None else jax.tree.map(lambda s: jnp.stack([s] * period), no_sums(moe))
            return given.place.constrain(x_BTD, "batch", "stream", "embed"), none

        return where_real(group, same, real, x_BTD, scanned)

    x_BTD, sums = jax.lax.scan(group if count is None else group_if_real, x_BTD, scanned)
    return x_BTD, jax.tree.map(lambda s: s.reshape(-1, *s.shape[2:]), sums)


def run_dense_layers(
    layers: dict[str, Any], x_BTD: Float[Array, "B T D"], config: ModelConfig, given: Inputs
) -> Float[Array, "B T D"]:
    """x after the first layers of a model with experts, which have none. `layers`: their stacked weights."""
    run = _one_layer(config, given, None)

    def layer(x_BTD: jax.Array, scanned: tuple[Any, jax.Array]) -> tuple[jax.Array, None]:
        return run(x_BTD, scanned[0], scanned[1], config.layer_window(0), None)

    num_layers = jax.tree.leaves(layers)[0].shape[0]
    return jax.lax.scan(layer, x_BTD, (layers, jnp.arange(num_layers, dtype=jnp.int32)))[0]


def _one_layer(config: ModelConfig, given: Inputs, moe: MoEConfig | None) -> Callable[..., tuple[jax.Array, Any]]:
    """The function (x, weights, number of the layer, window, load) of a layer, with the layout's memory policy."""
    graph, _ = nnx.split(Block(config, moe))

    def run(x: jax.Array, weights: Any, layer: jax.Array, window: int | None, load: Any) -> tuple[jax.Array, Any]:
        def one(x: jax.Array, weights: Any, layer: jax.Array, load: Any) -> tuple[jax.Array, Any]:
            return nnx.merge(graph, weights)(x, given, layer, window, load)

        return rematerialize(one, given.place.layout.remat)(x, weights, layer, load)

    return run


def _load_of(given: Inputs, config: ModelConfig, starts: jax.Array, period: int) -> jax.Array | None:
    """The rows of `given.load` of each group's layers with experts."""
    if given.load is None or config.moe is None:
        return None
    number = (starts[:, None] - config.moe.first_dense) // config.moe.every + jnp.arange(period)
    # Not an index: in a pipeline's shard_map an array from outside it may not be indexed.
    mine = (number[..., None] == jnp.arange(given.load.shape[0]))[..., None]
    return jnp.where(mine, given.load, 0).sum(-2)


def _grouped(layers: Any, num_groups: int) -> Any:
    return jax.tree.map(lambda w: w.reshape(num_groups, w.shape[0] // num_groups, *w.shape[1:]), layers)


def _pick(tree: Any, number: int) -> Any:
    return jax.tree.map(lambda w: w[number], tree)
