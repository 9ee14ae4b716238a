"""What a ring computes in which step, as tables: which chunk of queries meets which chunk of keys on which device.

In the step with shift s device i holds the keys of device (i - s) modulo the size of the ring. A step that causal order
and window leave empty on every device is not in the schedule: its keys are never sent. A pair of chunks that is empty
on one device is not computed there. The ring runs these very tables, and the balance is counted from them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

NOTHING = -1  # a device's entry in a slot in which it has nothing to do

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Step:
    """Step of a ring. queries, keys: int [slot, device], the chunk of this device's queries and the chunk of the keys
    it holds that meet there, or NOTHING. A slot is one call of the kernel."""

    shift: int
    queries: np.ndarray
    keys: np.ndarray


@dataclass(frozen=True, eq=False)  # one object for each case (`ring_schedule` keeps them), hashed by identity
class Schedule:
    """The steps of a ring of `num_shards` devices over rows of `length` tokens, `chunks` chunks to a device."""

    num_shards: int
    chunks: int
    length: int
    window: int | None
    steps: tuple[Step, ...]

    @property
    def chunk_size(self) -> int:
        """Tokens of a chunk."""
        return self.length // (self.num_shards * self.chunks)

    def pairs(self) -> Iterator[tuple[int, int, int]]:
        """(device, number of the chunk of queries in the row, number of the chunk of keys) of everything computed."""
        for step in self.steps:
            for of_queries, of_keys in zip(step.queries, step.keys, strict=True):
                for device, (half, key_half) in enumerate(zip(of_queries.tolist(), of_keys.tolist(), strict=True)):
                    if half != NOTHING:
                        holder = (device - step.shift) % self.num_shards
                        yield device, self.chunk(device, half), self.chunk(holder, key_half)

    def chunk(self, shard: int, half: int) -> int:
        """Which chunk of the row a shard has as its first (0) or second (1)."""
        return 2 * self.num_shards - 1 - shard if half else shard

    def balance(self, blocks_per_shard: int = 4) -> list[int]:
        """For each device the blocks of queries and keys, a shard being cut into so many, of which any pair is seen.

        Rows of one document; the blocks are rounded down to a divisor of the chunk.
        """
        per_chunk = max(blocks_per_shard // self.chunks, 1)
        while self.chunk_size % per_chunk:
            per_chunk -= 1
        size = self.chunk_size // per_chunk
        counts = [0] * self.num_shards
        block = np.arange(per_chunk)
        for device, query_chunk, key_chunk in self.pairs():
            ahead = (query_chunk - key_chunk) * per_chunk + block[:, None] - block
            counts[device] += int(_seen(ahead, size, self.window).sum())
        return counts


@cache
def ring_schedule(num_shards: int, chunks: int, length: int, window: int | None) -> Schedule:
    """The schedule for causal attention, with a window or without. `chunks` is 2 for the zigzag, else 1."""
    empty = Schedule(num_shards, chunks, length, window, ())
    steps = []
    for shift in range(num_shards):
        needed = [_needed(empty, device, (device - shift) % num_shards) for device in range(num_shards)]
        if any(needed):
            steps.append(Step(shift, *_slots(needed)))
    return Schedule(num_shards, chunks, length, window, tuple(steps))


def _needed(schedule: Schedule, device: int, holder: int) -> list[Pair]:
    """The pairs (chunk of the device's queries, chunk of the holder's keys) of which any query sees any key."""
    halves = range(schedule.chunks)
    return [
        (half, key_half)
        for half in halves
        for key_half in halves
        if _seen(schedule.chunk(device, half) - schedule.chunk(holder, key_half), schedule.chunk_size, schedule.window)
    ]


def _seen(ahead: Any, size: int, window: int | None) -> Any:
    """Whether any query of a block sees any key of a block that lies `ahead` blocks of `size` tokens before it."""
    seen = np.greater_equal(ahead, 0)
    return seen if window is None else seen & ((ahead - 1) * size + 1 < window)


def _slots(needed: list[list[Pair]]) -> tuple[np.ndarray, np.ndarray]:
    """Each device's pairs dealt out to slots. Pairs that all devices have come first: their slots need no choice."""
    common = [pair for pair in needed[0] if all(pair in pairs for pairs in needed)]
    own = [common + [pair for pair in pairs if pair not in common] for pairs in needed]
    num = max(map(len, own))
    table = np.full((2, num, len(own)), NOTHING)
    for device, pairs in enumerate(own):
        for slot, pair in enumerate(pairs):
            table[:, slot, device] = pair
    return table[0], table[1]
