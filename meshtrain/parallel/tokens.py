"""How a batch of tokens and a table of the vocabulary lie on the devices, for the embedding and for the loss.

Rows of the table are cut over the vocabulary's axes, tokens over those of batch and length; an axis in both goes to
the tokens. Where the residual stream is cut by the vocabulary's axes too (`stream` = `length` and then `vocab`), a sum
over the vocabulary ends as a reduce-scatter, and its opposite is an all-gather.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshtrain.layout import Placement
from meshtrain.layout.order import token_of
from meshtrain.layout.rules import Axes
from meshtrain.parallel.shard import free_axes, held_axes, shard_index, sum_over, without


@dataclass(frozen=True)
class TokenAxes:
    """The free axes of each dim, and the specs that follow."""

    batch: Axes
    length: Axes
    vocab: Axes
    scatters: bool  # whether the stream is cut over `length` and then `vocab`

    @classmethod
    def of(cls, place: Placement, T: int) -> "TokenAxes":
        """For sequences of T tokens under this layout, as seen from the code being traced."""
        batch, length = free_axes(place, "batch"), free_axes(place, "length")
        vocab = without(free_axes(place, "vocab", "use"), batch, length)
        stream = free_axes(place, "stream")
        return cls(batch, length, vocab, bool(vocab) and stream == length + vocab and T % place.size(stream) == 0)

    @property
    def token_axes(self) -> Axes:
        """The axes over which tokens are cut, and over which a sum over tokens has its parts."""
        return self.batch + self.length

    @property
    def tokens(self) -> PartitionSpec:
        """[B, T, ...], every device with all tokens that its rows of the table can meet."""
        return PartitionSpec(self.batch or None, self.length or None)

    @property
    def stream(self) -> PartitionSpec:
        """[B, T, ...] where a sum over the vocabulary has been taken by `sum_over_vocab`."""
        return PartitionSpec(self.batch or None, (self.length + self.vocab * self.scatters) or None)

    @property
    def table(self) -> PartitionSpec:
        """[V, ...] while it is used."""
        return PartitionSpec(self.vocab or None)

    @property
    def parts(self) -> PartitionSpec:
        """[parts, V, ...]: a sum over tokens not yet taken over the tokens' axes.

        The sum over the leading dim is left to the compiler, which makes of it an all-reduce or a reduce-scatter, as
        the sharding that the gradient is given asks for.
        """
        return PartitionSpec(self.token_axes or None, self.vocab or None)

    def sum_over_vocab(self, x_BTD: jax.Array, place: Placement) -> jax.Array:
        """In a shard: the sum of every vocabulary shard's [B, T, D], in the spec `stream`."""
        if self.scatters:
            return sum_over(x_BTD, self.vocab, place, scatter=1)
        return sum_over(x_BTD, self.vocab, place) if self.vocab else x_BTD

    def gather_tokens(self, x_BTD: jax.Array) -> jax.Array:
        """In a shard: [B, T, D] in the spec `stream` -> in the spec `tokens`."""
        return lax.all_gather(x_BTD, self.vocab, axis=1, tiled=True) if self.scatters else x_BTD

    def first_row(self, table_VD: jax.Array) -> jax.Array | int:
        """In a shard: the vocabulary entry of the first row of this device's part of the table."""
        return shard_index(self.vocab) * table_VD.shape[0]


def row_tokens(place: Placement, T: int) -> jax.Array:
    """int [T]: which token of its row stands in each of the T columns that the code being traced has of every row."""
    held = held_axes(place, "length")
    return token_of(shard_index(held) * T + jnp.arange(T), place, place.size(held) * T)


def join_parts(parts: jax.Array) -> jax.Array:
    """The sum over the leading dim, in the dtype of the parts (`sum` would take float32, and twice the bytes would
    travel). XLA's CPU compiler ends the process at a `lax.reduce` of bfloat16 within a shard_map."""
    return lax.reduce_sum(parts, (0,))
