"""Dropout whose mask belongs to the sample: an element's fate depends only on (key, layer, site, sample id, index).

The mask of a token is drawn from a key of its own. So no layout, microbatch or place of the row in the batch changes
it, and identical rows with other sample ids get other masks.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from meshtrain.model import random

# Where a layer drops, as folded into the key; the embeddings count as a layer of their own.
EMBEDDING, ATTENTION, MLP = 0, 1, 2


@dataclass(frozen=True)
class Dropout:
    """What all sites of a step share: the share of elements to drop, the step's key and the rows' sample ids."""

    rate: float
    key: jax.Array
    index: jax.Array  # [B]
    token: jax.Array  # [T]: which token of its row stands in each column

    def __call__(
        self, x_BTD: Float[Array, "B T D"], layer: jax.Array | int, site: jax.Array | int
    ) -> Float[Array, "B T D"]:
        """x with elements zeroed at random and the others divided by 1 - rate. `layer` is -1 for the embeddings."""
        key = random.threefry(random.words(self.key), site, layer + 1)
        keep = keep_mask(key, self.index, self.token, x_BTD.shape[2], self.rate)
        scaled_BTD = (x_BTD.astype(jnp.float32) / (1 - self.rate)).astype(x_BTD.dtype)  # (0.9 is 0.8984 in bfloat16)
        return jnp.where(keep, scaled_BTD, jnp.zeros((), x_BTD.dtype))


def keep_mask(
    key: random.Words, index_B: Integer[Array, " B"], token_T: Integer[Array, " T"], width: int, rate: float
) -> jax.Array:
    """bool [B, T, width]: true with probability 1 - rate, from 32 bits an element."""
    row_keys = tuple(word[:, None, None] for word in random.threefry(key, 0, index_B))
    place_in_row, lane = token_T[:, None], jnp.arange(width)
    bits, _ = random.threefry((row_keys[0], row_keys[1]), place_in_row, lane)
    return bits >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
