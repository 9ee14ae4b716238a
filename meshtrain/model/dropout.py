"""Dropout whose mask belongs to the sample: an element's fate depends only on (key, layer, site, sample id, index).

The mask of a token is drawn from a key of its own. So no layout, microbatch or place of the row in the batch changes
it, and identical rows with other sample ids get other masks.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

# Where a layer drops, as folded into the key; the embeddings count as a layer of their own.
EMBEDDING, ATTENTION, MLP = 0, 1, 2


@dataclass(frozen=True)
class Dropout:
    """What all sites of a step share: the share of elements to drop, the step's key and the rows' sample ids."""

    rate: float
    key: jax.Array
    index: jax.Array  # [B]

    def __call__(self, x_BTD: Float[Array, "B T D"], layer: jax.Array | int, site: int) -> Float[Array, "B T D"]:
        """x with elements zeroed at random and the others divided by 1 - rate. `layer` is -1 for the embeddings."""
        key = jax.random.fold_in(jax.random.fold_in(self.key, site), jnp.asarray(layer + 1, jnp.uint32))
        keep = keep_mask(key, self.index, x_BTD.shape[1], x_BTD.shape[2], self.rate)
        return jnp.where(keep, x_BTD / jnp.asarray(1 - self.rate, x_BTD.dtype), jnp.zeros((), x_BTD.dtype))


def keep_mask(key: jax.Array, index_B: Integer[Array, " B"], length: int, width: int, rate: float) -> jax.Array:
    """bool [B, length, width]: true with probability 1 - rate, in steps of 2^-16, from one 16-bit draw an element."""

    def token(row_key: jax.Array, place_in_row: jax.Array) -> jax.Array:
        return jax.random.bits(jax.random.fold_in(row_key, place_in_row), (width,), jnp.uint16)

    rows = jax.vmap(lambda index: jax.random.fold_in(key, index))(index_B.astype(jnp.uint32))
    draws = jax.vmap(jax.vmap(token, (None, 0)), (0, None))(rows, jnp.arange(length, dtype=jnp.uint32))
    return draws >= jnp.uint16(round(rate * 2**16))
