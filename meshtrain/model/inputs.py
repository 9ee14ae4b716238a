"""`Inputs`: what every layer of a batch is given beside the residual stream."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax

from meshtrain.layout import Placement
from meshtrain.model.config import ModelConfig
from meshtrain.model.dropout import Dropout
from meshtrain.model.rotary import rotary_tables
from meshtrain.parallel.tokens import row_tokens


@dataclass(frozen=True)
class Inputs:
    """Where arrays live, each token's position and document, the rotary tables of the positions, and the dropout."""

    place: Placement
    positions: jax.Array  # [B, T], restarting in each document
    segments: jax.Array  # [B, T], 1, 2, .. per document, 0 for padding
    packed: bool  # whether a row may hold several documents, which attention has to keep apart
    tables: tuple[jax.Array, jax.Array] | None
    dropout: Dropout | None
    load: jax.Array | None = None  # [MoE layer, expert], where the batch is a part of the global one (losses.py)

    @property
    def counted(self) -> jax.Array:
        """bool [B, T]: tokens that are not padding."""
        return self.segments > 0


def counted_tokens(positions_BT: jax.Array, segments_BT: jax.Array | None, place: Placement) -> jax.Array:
    """bool [B, T]: tokens that are not padding. Without segments, padding stands at position 0 like the first token of
    the row's only document; but that one is the row's first."""
    if segments_BT is not None:
        return segments_BT > 0
    return (positions_BT > 0) | (row_tokens(place, positions_BT.shape[1]) == 0)


def make_inputs(
    batch: Mapping[str, jax.Array],
    config: ModelConfig,
    place: Placement,
    dropout_key: jax.Array | None,
    load: jax.Array | None = None,
) -> Inputs:
    """Inputs of a batch. Nothing is dropped without a key; with one, the batch's `index_B` says the masks.

    A batch without `segments` has one document a row, and padding behind it. By positions alone all tokens would see
    the padding, which stands at position 0: it is segment 0, as in any batch.
    """
    positions_BT = batch["positions"]
    packed = "segments" in batch
    segments_BT = batch["segments"] if packed else counted_tokens(positions_BT, None, place).astype(positions_BT.dtype)
    dropout = None
    if dropout_key is not None and config.dropout:
        token_T = row_tokens(place, positions_BT.shape[1])
        dropout = Dropout(config.dropout, dropout_key, batch["index_B"], token_T)
    tables = None
    if config.positions == "rotary":
        cos, sin = rotary_tables(positions_BT, config)
        tables = cos, sin
    return Inputs(place, positions_BT, segments_BT, packed, tables, dropout, load)
