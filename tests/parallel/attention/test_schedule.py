"""The ring's tables: everything that a query may see is met once, nothing is sent for nothing, work is shared out."""

from collections import Counter

import numpy as np
import pytest

from meshtrain.parallel.attention.balance import balance
from meshtrain.parallel.attention.schedule import NOTHING, Schedule, ring_schedule
from tests.parallel.attention.context import placed

SIZES = [(n, chunks, window) for n in (2, 3, 4, 8) for chunks in (1, 2) for window in (None, 1, 2, 5, 13, 40)]
CHUNK = 4  # tokens


def schedule_of(num_shards: int, chunks: int, window: int | None) -> Schedule:
    return ring_schedule(num_shards, chunks, num_shards * chunks * CHUNK, window)


@pytest.mark.parametrize(("num_shards", "chunks", "window"), SIZES)
def test_every_visible_pair_is_met_once(num_shards: int, chunks: int, window: int | None) -> None:
    """Against the mask itself, token by token; and pairs of chunks without a visible token are not met."""
    schedule = schedule_of(num_shards, chunks, window)
    tokens = np.arange(schedule.length)
    ahead = tokens[:, None] - tokens
    seen = (ahead >= 0) & (ahead < (window or schedule.length))
    by_chunk = seen.reshape(num_shards * chunks, CHUNK, num_shards * chunks, CHUNK).any((1, 3))
    met = Counter((query, key) for _, query, key in schedule.pairs())
    assert set(met) == {(int(q), int(k)) for q, k in np.argwhere(by_chunk)}
    assert set(met.values()) == {1}


@pytest.mark.parametrize(("num_shards", "chunks", "window"), SIZES)
def test_each_device_meets_its_own_queries(num_shards: int, chunks: int, window: int | None) -> None:
    schedule = schedule_of(num_shards, chunks, window)
    for device, query, _ in schedule.pairs():
        assert query in [schedule.chunk(device, half) for half in range(chunks)]


def test_zigzag_shares_out_causal_work_evenly_in_every_step() -> None:
    for num_shards in (2, 4, 8, 16):
        for step in schedule_of(num_shards, 2, None).steps:
            assert len(set((step.queries != NOTHING).sum(0).tolist())) == 1
            assert (step.queries != NOTHING).all()  # no device waits, and none has a branch to take


def test_balance_by_hand() -> None:
    """16 blocks of queries and keys on 4 devices: 136 pairs are causal."""
    assert balance(placed("ring", "contiguous", 4), 64, None) == [10, 26, 42, 58]
    assert balance(placed("ring", "zigzag", 4), 64, None) == [34, 34, 34, 34]
    assert balance(placed("gather", "zigzag", 4), 64, None) == [34, 34, 34, 34]
    assert balance(placed("usp", "zigzag", 4, 2), 64, None) == [34, 34, 34, 34]
    assert balance(placed("ulysses", "contiguous", 4), 64, None) == []  # whole rows: nothing to share out
    assert balance(placed("ring", "contiguous", 8), 256, 8) == [7, 8, 8, 8, 8, 8, 8, 8]  # a window evens it out itself


@pytest.mark.parametrize("num_shards", [2, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("window", [None, 3, 20])
def test_balance_counts_what_the_mask_has(num_shards: int, chunks: int, window: int | None) -> None:
    """The sum over devices is the number of blocks of the whole matrix with any visible pair in them."""
    schedule = ring_schedule(num_shards, chunks, num_shards * 16, window)
    tokens = np.arange(schedule.length)
    ahead = tokens[:, None] - tokens
    seen = (ahead >= 0) & (ahead < (window or schedule.length))
    num = num_shards * 4
    assert sum(schedule.balance(4)) == seen.reshape(num, 4, num, 4).any((1, 3)).sum()


def test_steps_outside_the_window_are_not_sent() -> None:
    """Chunks of 32 tokens: with a window of 33 a query sees into one chunk before its own, with 34 into two."""
    contiguous = {w: [s.shift for s in ring_schedule(8, 1, 256, w).steps] for w in (1, 2, 33, 34, None)}
    assert contiguous == {1: [0], 2: [0, 1], 33: [0, 1], 34: [0, 1, 2], None: list(range(8))}
    # In the zigzag a neighbour in the row is on the device before or after: the ring is left out in between.
    assert [s.shift for s in ring_schedule(8, 2, 256, 16).steps] == [0, 1, 7]
