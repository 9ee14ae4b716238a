"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): keys and values of all heads come from one latent.

    q = rotate_last(norm(x query_down) query_up)     or x query, where there is no latent for queries
    k = [norm(x kv_down) key_up, rotate(x key_rope) for all heads],     v = norm(x kv_down) value_up

A head is [part that is not rotated, rotated part]; pairs (2i, 2i + 1) of the rotated part turn together. That is the
order of DeepSeek's published weights: q_b_proj is query_up, kv_a_proj_with_mqa is [kv_down, key_rope], and of each head
of kv_b_proj the first nope_dim rows are key_up, the rest value_up. Attention sees keys and values of every head, so
every exchange works as for other models.

The dim of a latent is query_rank or kv_rank where it is made, and latent where heads are made from it: so a row `embed`
(ZeRO) cuts every matrix, and the latents themselves only where a row names them.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from meshtrain.layout import Placement
from meshtrain.model.config import ModelConfig
from meshtrain.model.inputs import Inputs
from meshtrain.model.norm import Norm
from meshtrain.model.product import product
from meshtrain.model.rotary import rotate
from meshtrain.model.weight import normal, weight
from meshtrain.parallel.attention import Mask, attend


class LatentAttention(nnx.Module):
    """One layer's latents, what each head makes of them, and the output matrix."""

    def __init__(self, config: ModelConfig):
        latent = config.latent
        assert latent is not None
        embed, heads = config.embed, config.num_heads
        start, into_stream = normal(config.init_std), normal(config.init_std / (2 * config.num_layers) ** 0.5)
        self.config, self.latent = config, latent
        ranks, dims = (latent.kv_rank, heads), ("latent", "kv_heads", "head_dim")
        self.kv_down = weight((embed, latent.kv_rank), ("embed", "kv_rank"), start)
        self.key_rope = weight((embed, latent.rope_dim), ("embed", "rope_dim"), start)
        self.kv_norm = rank_norm(config, latent.kv_rank, "kv_rank")
        self.key_up = weight((*ranks, latent.nope_dim), dims, start)
        self.value_up = weight((*ranks, latent.value_dim), dims, start)
        self.output = weight((heads, latent.value_dim, embed), ("heads", "head_dim", "embed"), into_stream)
        if latent.query_rank is None:
            self.query = weight((embed, heads, config.head_dim), ("embed", "heads", "head_dim"), start)
            return
        self.query_down = weight((embed, latent.query_rank), ("embed", "query_rank"), start)
        self.query_norm = rank_norm(config, latent.query_rank, "query_rank")
        self.query_up = weight((latent.query_rank, heads, config.head_dim), ("latent", "heads", "head_dim"), start)

    def __call__(self, x_BTD: Float[Array, "B T D"], given: Inputs, window: int | None) -> Float[Array, "B T D"]:
        place, config = given.place, self.config
        q_BTNH, k_BSKH, v_BSKW = self.project(x_BTD, given)
        out_BTNW = attend(
            checkpoint_name(q_BTNH, "expanded"),
            checkpoint_name(k_BSKH, "expanded"),
            checkpoint_name(v_BSKW, "expanded"),
            positions_BT=given.positions,
            segments_BT=given.segments,
            mask=Mask(config.attention_scale, window, config.attention_softcap, given.packed),
            place=place,
        )
        out_BTNW = place.constrain(out_BTNW, "batch", "length", "heads", "head_dim")
        return place.constrain(product("btnh,nhd->btd", out_BTNW, [self.output], place), "batch", "stream", "embed")

    def project(
        self, x_BTD: Float[Array, "B T D"], given: Inputs
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K W"]]:
        """Queries, keys and values, rotated."""
        place, latent, tables = given.place, self.latent, given.tables
        assert tables is not None
        latent_BTQ, latent_BSR, rope_BSJ = self.compress(x_BTD, place)
        q_BTNH = self.queries(x_BTD, latent_BTQ, place)
        unturned, turned = jnp.split(q_BTNH, [latent.nope_dim], axis=-1)
        q_BTNH = jnp.concatenate([unturned, rotate(turned, tables, interleaved=True)], axis=-1)

        kv_BSKH = product(
            "bsr,rkh->bskh", self.kv_norm(latent_BSR, place), [self.key_up, self.value_up], place, side_by_side
        )
        kv_BSKH = place.constrain(kv_BSKH, "batch", "length", "kv_heads", "head_dim")
        unturned, v_BSKW = jnp.split(kv_BSKH, [latent.nope_dim], axis=-1)
        shared = rotate(rope_BSJ[:, :, None], tables, interleaved=True)
        k_BSKH = jnp.concatenate([unturned, jnp.broadcast_to(shared, (*unturned.shape[:3], latent.rope_dim))], axis=-1)
        return (
            place.constrain(q_BTNH, "batch", "length", "heads", "head_dim"),
            place.constrain(k_BSKH, "batch", "length", "kv_heads", "head_dim"),
            place.constrain(v_BSKW, "batch", "length", "kv_heads", "head_dim"),
        )

    def compress(
        self, x_BTD: Float[Array, "B T D"], place: Placement
    ) -> tuple[Float[Array, "B T Q"] | None, Float[Array, "B S R"], Float[Array, "B S J"]]:
        """The latents of queries (None without) and of keys and values, before their norms, and the rotated key's part.

        One product with the matrices side by side, where no axis cuts their columns; remat policies keep its result
        rather than what is made from it, which is 13 to 70 times as wide (DeepSeek-V3, 2024, section 3.2.3).
        """
        down = [self.kv_down, self.key_rope]
        dims = ["kv_rank", "rope_dim"]
        if self.latent.query_rank is not None:
            down, dims = [self.query_down, *down], ["query_rank", *dims]
        if any(place.axes(dim, kind) for dim in dims for kind in ("use", "activations")):
            found = [product("btd,dr->btr", x_BTD, [param], place) for param in down]
        else:
            ends = np.cumsum([param[...].shape[1] for param in down])
            found = jnp.split(product("btd,dr->btr", x_BTD, down, place, side_by_side), ends[:-1], axis=-1)
        for i, dim in enumerate(dims):
            found[i] = checkpoint_name(place.constrain(found[i], "batch", "length", dim), "latent")
        return (found[0] if len(found) == 3 else None), found[-2], found[-1]

    def queries(
        self, x_BTD: Float[Array, "B T D"], latent_BTQ: Float[Array, "B T Q"] | None, place: Placement
    ) -> Float[Array, "B T N H"]:
        """Queries before the rotation."""
        if latent_BTQ is None:
            return product("btd,dnh->btnh", x_BTD, [self.query], place)
        return product("btq,qnh->btnh", self.query_norm(latent_BTQ, place), [self.query_up], place)


def rank_norm(config: ModelConfig, size: int, dim: str) -> Norm:
    """The RMSNorm over a latent."""
    return Norm(size, dim, "rms", config.norm_eps, config.norm_plus_one)


def side_by_side(*weights: jax.Array) -> jax.Array:
    """Matrices as one, their outputs one after the other."""
    return jnp.concatenate(weights, axis=-1)
