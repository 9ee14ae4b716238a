"""The place of each token in the queue of its experts: what decides who is dropped, alike under every layout.

An expert takes the tokens of a row in the row's order, and of one token the better choice first, until it has its
capacity *of this row*. So nothing depends on how the batch is cut over devices, microbatches or stages; no token is
dropped for a later one; and padding, which is not in the queue, takes no place.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from meshtrain.layout import Placement
from meshtrain.layout.order import token_of


def places_in_row(
    expert_BTk: Int[Array, "B T k"], counted_BT: Bool[Array, "B T"], num_experts: int, place: Placement
) -> Int[Array, "B T k"]:
    """How many pairs of the same row and expert stand before each pair. Of tokens that do not count: anything.

    Where the length is cut, the choices of a row (no activations) are gathered; the compiler does it.
    """
    B, T, k = expert_BTk.shape
    key = jnp.where(counted_BT[..., None], expert_BTk, num_experts)
    key = place.constrain(key, "batch", "whole", "choice")
    token_of_column = token_of(jnp.arange(T), place, T)
    key = key[:, jnp.argsort(token_of_column)].reshape(B, T * k)
    order = jnp.argsort(key, axis=1, stable=True)
    ordered = jnp.take_along_axis(key, order, axis=1)
    index = jnp.arange(T * k)
    fresh = jnp.concatenate([jnp.ones((B, 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    first = jax.lax.cummax(jnp.where(fresh, index, 0), axis=1)
    places = jnp.take_along_axis(index - first, jnp.argsort(order, axis=1), axis=1).reshape(B, T, k)
    return place.constrain(places[:, token_of_column], "batch", "stream", "choice")
