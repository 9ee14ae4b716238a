"""Choosing experts, device by device: each token's choice is its own affair, and nothing has to travel for it."""

from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from meshtrain.layout import Placement
from meshtrain.parallel.shard import free_axes, on_shards


def by_token(place: Placement, choose: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """`choose`, of scores [B, T, E], which looks at one token at a time, on each device's own part of the stream.

    Left to the compiler, a top_k of rows that are cut along two dims gathers the scores of the global batch: it works
    on [rows, E], and the rows of two cut dims together have no sharding.
    """
    spec = PartitionSpec(free_axes(place, "batch") or None, free_axes(place, "stream") or None)
    return on_shards(place, choose, spec, spec)
