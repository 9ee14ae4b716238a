"""Grouped-query attention of one layer: projections, optional biases and q/k norms, rotation, `attend`, output matrix.

What the queries may see, and how they reach keys on other devices, is `parallel.attention`'s part.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from meshtrain.layout import Placement
from meshtrain.model.config import ModelConfig
from meshtrain.model.inputs import Inputs
from meshtrain.model.norm import Norm
from meshtrain.model.product import product
from meshtrain.model.rotary import rotate
from meshtrain.model.weight import ZEROS, add_bias, normal, use, weight
from meshtrain.parallel.attention import Mask, attend


class Attention(nnx.Module):
    """Query heads in groups that share a key and a value head: query head n uses key head n // (heads / kv_heads)."""

    def __init__(self, config: ModelConfig):
        embed, heads, kv_heads, head_dim = config.embed, config.num_heads, config.num_kv_heads, config.head_dim
        start = normal(config.init_std)
        self.config = config
        self.query = weight((embed, heads, head_dim), ("embed", "heads", "head_dim"), start)
        self.key = weight((embed, kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), start)
        self.value = weight((embed, kv_heads, head_dim), ("embed", "kv_heads", "head_dim"), start)
        into_stream = normal(config.init_std / (2 * config.num_layers) ** 0.5)
        self.output = weight((heads, head_dim, embed), ("heads", "head_dim", "embed"), into_stream)
        biased, normed = config.attention_bias, config.qk_norm
        self.query_bias = weight((heads, head_dim), ("heads", "head_dim"), ZEROS) if biased else None
        self.key_bias = weight((kv_heads, head_dim), ("kv_heads", "head_dim"), ZEROS) if biased else None
        self.value_bias = weight((kv_heads, head_dim), ("kv_heads", "head_dim"), ZEROS) if biased else None
        self.output_bias = weight((embed,), ("embed",), ZEROS) if config.attention_output_bias else None
        self.query_norm = head_norm(config) if normed else None
        self.key_norm = head_norm(config) if normed else None

    def __call__(self, x_BTD: Float[Array, "B T D"], given: Inputs, window: int | None) -> Float[Array, "B T D"]:
        place, config = given.place, self.config
        q_BTNH, k_BSKH, v_BSKH = self.project(x_BTD, place)
        if self.query_norm is not None and self.key_norm is not None:
            q_BTNH, k_BSKH = self.query_norm(q_BTNH, place), self.key_norm(k_BSKH, place)
        if given.tables is not None:
            q_BTNH, k_BSKH = rotate(q_BTNH, given.tables), rotate(k_BSKH, given.tables)
        out_BTNH = attend(
            checkpoint_name(q_BTNH, "query"),
            checkpoint_name(k_BSKH, "key"),
            checkpoint_name(v_BSKH, "value"),
            positions_BT=given.positions,
            segments_BT=given.segments,
            mask=Mask(config.attention_scale, window, config.attention_softcap, given.packed),
            place=place,
        )
        out_BTNH = place.constrain(out_BTNH, "batch", "length", "heads", "head_dim")
        y_BTD = place.constrain(product("btnh,nhd->btd", out_BTNH, [self.output], place), "batch", "stream", "embed")
        return y_BTD if self.output_bias is None else add_bias(y_BTD, use(self.output_bias, place))

    def project(
        self, x_BTD: Float[Array, "B T D"], place: Placement
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        """Queries, keys and values with their biases.

        One product with the three matrices side by side, for each key head its queries, itself and its value: backward
        then has one product, and one sum over a tensor axis, for the gradient of x. Where key heads are fewer than
        their axes they are replicated while queries are not, so each matrix has its own product.
        """
        q, k, v = self.query, self.key, self.value
        kv_heads = self.config.num_kv_heads
        group = self.config.num_heads // kv_heads

        def side_by_side(q_DNH: jax.Array, k_DKH: jax.Array, v_DKH: jax.Array) -> jax.Array:
            q_DKGH = q_DNH.reshape(q_DNH.shape[0], kv_heads, group, -1)
            return jnp.concatenate([q_DKGH, k_DKH[:, :, None], v_DKH[:, :, None]], axis=2)

        if kv_heads % place.num_shards("kv_heads") == 0:
            y = product("btd,dkgh->btkgh", x_BTD, [q, k, v], place, side_by_side)
            q_BTNH = y[:, :, :, :group].reshape(*y.shape[:2], -1, y.shape[-1])
            k_BSKH, v_BSKH = y[:, :, :, group], y[:, :, :, group + 1]
        else:
            q_BTNH, k_BSKH, v_BSKH = (product("btd,dnh->btnh", x_BTD, [w], place) for w in (q, k, v))
        found = []
        for y, bias, heads in (
            (q_BTNH, self.query_bias, "heads"),
            (k_BSKH, self.key_bias, "kv_heads"),
            (v_BSKH, self.value_bias, "kv_heads"),
        ):
            y = y if bias is None else add_bias(y, use(bias, place))
            found.append(place.constrain(y, "batch", "length", heads, "head_dim"))
        return found[0], found[1], found[2]


def head_norm(config: ModelConfig) -> Norm:
    """The RMSNorm over one head's query or key."""
    return Norm(config.head_dim, "head_dim", "rms", config.norm_eps, config.norm_plus_one)
