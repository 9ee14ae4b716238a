"""The embedding lookup: each device reads the rows of the table that it owns; a sum over the vocabulary joins them.

Written out because a plain `table[tokens]` with a cut vocabulary makes the compiler gather the global batch. Backward
each device adds up the gradient rows of its own tokens; the sum over the tokens' axes is left to the compiler.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from meshtrain.layout import Placement
from meshtrain.parallel.shard import free_axes, on_shards, without
from meshtrain.parallel.tokens import TokenAxes, join_parts


def embed_tokens(
    table_VD: Float[Array, "V D"], tokens_BT: Int[Array, "B T"], place: Placement
) -> Float[Array, "B T D"]:
    """Row tokens[b, t] of the table, in the table's dtype; tokens must be in [0, V) (the host checks them).

    `table_VD` is as `place.at_use` gives it. The gradient is summed in float32 on each device.
    """
    return place.constrain(_embed(table_VD, tokens_BT, place), "batch", "stream", "embed")


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _embed(table_VD: jax.Array, tokens_BT: jax.Array, place: Placement) -> jax.Array:
    axes, embed = _axes(place, tokens_BT)

    def look_up(table: jax.Array, tokens: jax.Array) -> jax.Array:
        if not axes.vocab:
            return table[tokens]
        row, owned = _own_rows(table.shape[0], tokens - axes.first_row(table))
        rows = jnp.where(owned[..., None], table[jnp.where(owned, row, 0)], 0)
        return axes.sum_over_vocab(rows, place)

    in_specs = PartitionSpec(*axes.table, embed), axes.tokens
    return on_shards(place, look_up, in_specs, PartitionSpec(*axes.stream, embed))(table_VD, tokens_BT)


def _forward(table_VD: jax.Array, tokens_BT: jax.Array, place: Placement) -> tuple[jax.Array, tuple[Any, ...]]:
    return _embed(table_VD, tokens_BT, place), (tokens_BT, table_VD)


def _backward(place: Placement, kept: tuple[jax.Array, ...], dx_BTD: jax.Array) -> tuple[jax.Array, None]:
    tokens_BT, table_VD = kept
    axes, embed = _axes(place, tokens_BT)

    def add_up(tokens: jax.Array, dx: jax.Array, table: jax.Array) -> jax.Array:
        dx = axes.gather_tokens(dx).astype(jnp.float32)
        row, owned = _own_rows(table.shape[0], tokens - axes.first_row(table))
        total = jnp.zeros(table.shape, jnp.float32)
        total = total.at[jnp.where(owned, row, table.shape[0])].add(dx, mode="drop")
        return total.astype(table.dtype)[None]

    in_specs = axes.tokens, PartitionSpec(*axes.stream, embed), PartitionSpec(*axes.table, embed)
    parts = on_shards(place, add_up, in_specs, PartitionSpec(*axes.parts, embed))(tokens_BT, dx_BTD, table_VD)
    return join_parts(parts), None


_embed.defvjp(_forward, _backward)


def _axes(place: Placement, tokens_BT: jax.Array) -> tuple[TokenAxes, tuple[str, ...] | None]:
    axes = TokenAxes.of(place, tokens_BT.shape[1])
    return axes, without(free_axes(place, "embed", "use"), axes.token_axes, axes.vocab) or None


def _own_rows(num_rows: int, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(row, whether it is one of this device's)."""
    return row, (row >= 0) & (row < num_rows)
