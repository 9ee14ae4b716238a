"""A mixture of experts in place of a layer's MLP: the router's experts of each token, and those that all tokens share.

Who goes where is decided on whole arrays (router.py), how they get there is `parallel.experts`'s part. A token that
finds no place in an expert passes it by: nothing is added to the residual stream for it. So does padding.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.model.config import ModelConfig
from meshtrain.model.inputs import Inputs
from meshtrain.model.losses import RouterSums, router_sums
from meshtrain.model.mlp import Mlp, activate
from meshtrain.model.moe_config import MoEConfig
from meshtrain.model.router import Router
from meshtrain.model.weight import normal, weight
from meshtrain.parallel.experts import ExpertMlp, places_in_row, run_experts
from meshtrain.parallel.rows import reaching


class Experts(nnx.Module):
    """The weights of all experts of a layer, one MLP each."""

    def __init__(self, config: ModelConfig, moe: MoEConfig):
        shape, dims = (moe.num_experts, config.embed, moe.mlp), ("expert", "expert_embed", "expert_mlp")
        start, into_stream = normal(config.init_std), normal(config.init_std / (2 * config.num_layers) ** 0.5)
        self.up = weight(shape, dims, start)
        self.gate = weight(shape, dims, start) if config.gated else None
        self.down = weight((shape[0], shape[2], shape[1]), (dims[0], dims[2], dims[1]), into_stream)

    @property
    def inward(self) -> tuple[jax.Array, ...]:
        """The weights from the stream to the hidden layer, as they are stored."""
        return (self.up[...],) if self.gate is None else (self.gate[...], self.up[...])


class Moe(nnx.Module):
    """The weights of a layer's router, experts and shared experts, and what they compute."""

    def __init__(self, config: ModelConfig, moe: MoEConfig):
        self.activation, self.moe = config.activation, moe
        self.router = Router(config, moe)
        self.experts = Experts(config, moe)
        self.shared = Mlp(config, moe.num_shared * moe.mlp) if moe.num_shared else None

    def __call__(
        self, x_BTD: Float[Array, "B T D"], given: Inputs, load_E: jax.Array | None
    ) -> tuple[Float[Array, "B T D"], RouterSums]:
        """(what is added to the stream, the layer's sums). load_E: as in `router_sums`."""
        place, moe = given.place, self.moe
        choice = self.router(x_BTD, place)
        capacity = place.layout.experts.capacity(x_BTD.shape[1], moe.top_k, moe.num_experts)
        counted_BT = place.constrain(given.counted, "batch", "stream")  # as the choices are
        counted_BTk = jnp.broadcast_to(counted_BT[..., None], choice.expert.shape)
        keep_BTk = counted_BTk
        if capacity is not None:
            keep_BTk &= places_in_row(choice.expert, counted_BT, moe.num_experts, place) < capacity
        mlp = ExpertMlp(moe.num_experts, moe.top_k, _activation(self.activation), capacity)
        down: Any = self.experts.down[...]
        weights = self.experts.inward, down
        y_BTD = run_experts(x_BTD, choice.expert, choice.weight, keep_BTk, *weights, mlp, reaching(place))
        if self.shared is not None:
            y_BTD = y_BTD + self.shared(place.constrain(x_BTD, "batch", "length", "embed"), place)
        dropped = (counted_BTk & ~keep_BTk).sum()
        return y_BTD, router_sums(choice, counted_BT, dropped, load_E, moe)


@cache
def _activation(name: str) -> Any:
    """[rows, products, F] -> [rows, F]; one function for each name, so that traces are found again."""
    return partial(_activate_rows, name)


def _activate_rows(name: str, products_RcF: jax.Array) -> jax.Array:
    return activate(products_RcF[None], name)[0]
