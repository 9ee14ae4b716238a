"""The router of a layer: each token's score for each expert, the experts that it goes to, and how much each counts.

    scores   softmax or sigmoid of x . weight, all of it in float32
    choice   the top_k of scores + bias, within the best groups; of equal scores the lower expert, under every layout
    weight   the chosen scores (without the bias), divided by their sum if `normalized`, times `scaling`

Padding chooses too, but is never counted and never sent. The losses that steer the router are in losses.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.layout import Placement
from meshtrain.model.config import ModelConfig
from meshtrain.model.moe_config import MoEConfig
from meshtrain.model.weight import ZEROS, normal, use, weight
from meshtrain.parallel.experts import by_token

GROUP_BEST = {"softmax": 1, "sigmoid": 2}  # a group's score is the sum of so many of its best (DeepSeek-V2, -V3)
SMALLEST_SUM = 1e-20  # of sigmoid scores that are all 0


class Choice(NamedTuple):
    """expert_BTk int, best first; float32: weight_BTk, share_BTE (scores divided by their sum), logits_BTE."""

    expert: jax.Array
    weight: jax.Array
    share: jax.Array
    logits: jax.Array


class Router(nnx.Module):
    """The weights of a router and what it chooses."""

    def __init__(self, config: ModelConfig, moe: MoEConfig):
        self.moe = moe
        self.weight = weight((config.embed, moe.num_experts), ("embed", "router"), normal(config.init_std))
        self.bias = weight((moe.num_experts,), ("router",), ZEROS) if moe.bias else None

    def __call__(self, x_BTD: Float[Array, "B T D"], place: Placement) -> Choice:
        moe = self.moe
        w_DE = use(self.weight, place).astype(jnp.float32)
        logits_BTE = jnp.einsum("btd,de->bte", x_BTD.astype(jnp.float32), w_DE, precision=jax.lax.Precision.HIGHEST)
        logits_BTE = place.constrain(logits_BTE, "batch", "stream", "router")
        softmax = moe.router == "softmax"
        scores_BTE = jax.nn.softmax(logits_BTE, axis=-1) if softmax else jax.nn.sigmoid(logits_BTE)
        chosen_by_BTE = jax.lax.stop_gradient(scores_BTE)
        if self.bias is not None:
            chosen_by_BTE = chosen_by_BTE + jax.lax.stop_gradient(use(self.bias, place)).astype(jnp.float32)
        choose = by_token(place, lambda scores_BTE: jax.lax.top_k(best_groups(scores_BTE, moe), moe.top_k)[1])
        expert_BTk = choose(chosen_by_BTE)
        weight_BTk = jnp.take_along_axis(scores_BTE, expert_BTk, axis=-1)
        if moe.normalized:
            weight_BTk = weight_BTk / (weight_BTk.sum(-1, keepdims=True) + SMALLEST_SUM)
        if moe.scaling != 1:
            weight_BTk = weight_BTk * moe.scaling
        share_BTE = scores_BTE if softmax else scores_BTE / (scores_BTE.sum(-1, keepdims=True) + SMALLEST_SUM)
        return Choice(expert_BTk, weight_BTk, share_BTE, logits_BTE)


def best_groups(scores_BTE: Float[Array, "B T E"], moe: MoEConfig) -> Float[Array, "B T E"]:
    """The scores, -inf outside of each token's `top_groups` best groups (DeepSeek-V3, 2024, section 2.1.2)."""
    if moe.top_groups == moe.num_groups:
        return scores_BTE
    by_group = scores_BTE.reshape(*scores_BTE.shape[:-1], moe.num_groups, moe.group_size)
    best = jax.lax.top_k(by_group, min(GROUP_BEST[moe.router], moe.group_size))[0].sum(-1)
    groups = jax.lax.top_k(best, moe.top_groups)[1]
    open_BTG = (groups[..., None] == jnp.arange(moe.num_groups)).any(-2)
    return jnp.where(open_BTG[..., None], by_group, -jnp.inf).reshape(scores_BTE.shape)
