"""The losses that steer a router, and what a layer tells about its load: sums over tokens, the same under every layout.

    balance   weight * E * sum over experts of (share of the pairs that go to e) * (mean share of e's scores), per token
    z         weight * (log-sum-exp of the logits)^2, per token                                          (ST-MoE, 2022)

The balance loss (Switch Transformer, 2021, equation 4) is a product of two means. The first, which carries no gradient,
is taken over all counted tokens of the *global* batch, or of each row (DeepSeek-V3's sequence-wise loss): never of
what one device, microbatch or stage happens to hold. Given it, the loss is a sum over tokens, and adds up over any of
these. Where the batch comes in several parts, the step finds the shares of the whole batch in a forward pass before. At
an even load the balance loss is `weight`, whatever the number of experts and top_k.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshtrain.model.config import ModelConfig
from meshtrain.model.moe_config import MoEConfig
from meshtrain.model.router import Choice


class RouterSums(NamedTuple):
    """Float32 sums over the counted tokens of a (micro)batch, of one layer or [layer, ..]: loss = balance + z, and only
    `loss` carries a gradient. entropy: of the shares, in nats. load [E]: pairs that chose each expert, dropped or not.
    dropped: pairs that found no place."""

    loss: jax.Array
    balance: jax.Array
    z: jax.Array
    entropy: jax.Array
    load: jax.Array
    dropped: jax.Array


def router_sums(
    choice: Choice, counted_BT: jax.Array, dropped: jax.Array, load_E: jax.Array | None, moe: MoEConfig
) -> RouterSums:
    """The sums of one layer. load_E: pairs of the global batch by expert; None: this is the global batch."""
    counted = counted_BT.astype(jnp.float32)
    chosen_BTE = (choice.expert[..., None] == jnp.arange(moe.num_experts)).any(-2) * counted[..., None]
    row_load_BE = chosen_BTE.sum(1)
    here_E = row_load_BE.sum(0)
    batch_load_E = here_E if load_E is None else load_E
    pairs_B1E = row_load_BE[:, None] if moe.balance_over == "row" else batch_load_E[None, None]
    share_B1E = moe.num_experts * pairs_B1E / jnp.maximum(pairs_B1E.sum(-1, keepdims=True), 1)
    balance = moe.balance_loss * (share_B1E * choice.share * counted[..., None]).sum()
    z = moe.z_loss * (jnp.square(jax.nn.logsumexp(choice.logits, axis=-1)) * counted).sum()
    entropy = -(jax.scipy.special.xlogy(choice.share, choice.share).sum(-1) * counted).sum()
    told = jax.tree.map(jax.lax.stop_gradient, (balance, z, entropy, here_E, dropped.astype(jnp.float32)))
    return RouterSums(balance + z, *told)


def no_sums(moe: MoEConfig) -> RouterSums:
    """The sums of a layer that is passed over."""
    zero = jnp.zeros((), jnp.float32)
    return RouterSums(zero, zero, zero, zero, jnp.zeros(moe.num_experts, jnp.float32), zero)


def zero_sums(config: ModelConfig) -> RouterSums | None:
    """The sums of all layers with experts before any token; None for a model without."""
    if config.moe is None:
        return None
    return jax.tree.map(lambda s: jnp.zeros((config.num_moe_layers, *s.shape), s.dtype), no_sums(config.moe))
