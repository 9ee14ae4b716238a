"""How a row's tokens are dealt out to the shards of the length: in one piece each, or in a zigzag.

    tokens of a row     0  1  2  3  4  5  6  7        2 chunks for each of 4 shards
    contiguous          0  0  1  1  2  2  3  3        a later shard sees more keys, and the first waits for the last
    zigzag              0  1  2  3  3  2  1  0        shard i has chunks i and 2 * 4 - 1 - i: all see as many

The host deals out tokens, labels, positions and segments together, so no device moves a token; attention goes by
positions and segments and is the same in any order.
"""

from typing import TypeVar

import jax
import numpy as np

from meshtrain.errors import InputError
from meshtrain.layout.placement import Placement
from meshtrain.layout.rules import Axes

Index = TypeVar("Index", np.ndarray, jax.Array)


def order_axes(place: Placement) -> Axes:
    """The axes larger than 1 whose shards the order deals out to: those of the length that do not swap heads for it.

    Shards that swap heads hold their tokens together, so to the order they are one.
    """
    axes = place.axes("length")
    if place.layout.attention == "ulysses":
        return ()
    if place.layout.attention == "usp":
        last = place.rules("activations").axes("length")[-1:]
        return tuple(axis for axis in axes if axis not in last)
    return axes


def num_chunks(place: Placement) -> tuple[int, int]:
    """(shards that the order deals out to, chunks that each of them gets)."""
    num_shards = place.size(order_axes(place))
    return num_shards, 2 if place.layout.order == "zigzag" and num_shards > 1 else 1


def row_order(place: Placement, length: int) -> np.ndarray | None:
    """For each column of a batch under this layout the token of the row that stands there, int [length].

    None where that is the row as it is. InputError where the length does not divide into the chunks.
    """
    if problem := uneven(place, length):
        raise InputError(": ".join(problem[:2]) + " " + problem[2])
    return None if num_chunks(place)[1] == 1 else token_of(np.arange(length), place, length)


def token_of(columns: Index, place: Placement, length: int) -> Index:
    """The tokens of the row that stand at these columns of a batch."""
    num_shards, chunks = num_chunks(place)
    if chunks == 1:
        return columns
    size = length // (2 * num_shards)
    shard, half, within = columns // (2 * size), columns // size % 2, columns % size
    return (shard + half * (2 * (num_shards - shard) - 1)) * size + within


def uneven(place: Placement, length: int) -> tuple[str, str, str] | None:
    """(config key, problem, way out) where the length does not divide into its shards' chunks; None where it does."""
    num_shards, chunks = num_chunks(place)
    unit = place.num_shards("length") * chunks
    if length % unit == 0:
        return None
    below, above = length // unit * unit, -(-length // unit) * unit
    cut = place.text(place.axes("length"))
    parts = f"{num_shards} pairs of chunks (order='zigzag')" if chunks > 1 else "as many parts"
    problem = f"{length} tokens do not divide over {cut} (rules.length) into {parts}, a multiple of {unit}."
    return "data.length", problem, f"data.length={f'{below} or {above}' if below else above} would work."
