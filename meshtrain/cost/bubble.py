"""How long a pipeline takes when its pieces differ: the schedule's own table, played with the real times of its ops.

Asynchronous: each stage runs its ops in the table's order, each as soon as its input is there. In lock step: a tick
lasts as long as the longest op of each kind that any stage runs in it. Behind the first rounds every further round of
`stages` microbatches takes the same time, so a table of a few rounds is played and the rest is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshtrain.parallel.pipeline import Table, lock_step, schedule
from meshtrain.parallel.pipeline.table import IDLE, B, F, W
from meshtrain.parallel.pipeline.timing import Op, earliest, op_needs

ROUNDS = 3  # of `stages` microbatches, that are played; a test holds the rest equal to whole tables


@dataclass(frozen=True)
class PipelineTime:
    """seconds: of all microbatches. work: of the busiest stage. bubble: idle share, mean over the stages."""

    seconds: float
    work: float
    bubble: float


@dataclass(frozen=True)
class Pieces:
    """Seconds of each piece's ops for one microbatch, first piece first; weight: what a table with W ops does apart."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]

    def stage_work(self, num_stages: int) -> np.ndarray:
        """Seconds of each stage for one microbatch, float [stage]."""
        whole = np.array([self.forward, self.backward, self.weight]).sum(axis=0)
        return whole.reshape(-1, num_stages).sum(axis=0)


def pipeline_time(
    name: str, num_stages: int, num_microbatches: int, pieces: Pieces, in_lock_step: bool = False
) -> PipelineTime:
    """The time of a step's microbatches under a schedule. InputError as `schedule` has it."""
    chunks = len(pieces.forward) // num_stages
    work = pieces.stage_work(num_stages) * num_microbatches
    if num_stages == 1:
        return PipelineTime(float(work[0]), float(work[0]), 0.0)
    played = num_microbatches
    even = name != "interleaved" or num_microbatches % num_stages == 0  # else its groups are of other sizes
    if even and not name.endswith(".csv") and num_microbatches > ROUNDS * num_stages:
        played = (ROUNDS - 1) * num_stages + num_microbatches % num_stages
    play = _in_lock_step if in_lock_step else _asynchronous
    seconds = play(name, num_stages, played, chunks, pieces)
    if played < num_microbatches:
        more = play(name, num_stages, played + num_stages, chunks, pieces) - seconds
        seconds += more * (num_microbatches - played) / num_stages
    return PipelineTime(seconds, float(work.max()), float(1 - work.mean() / seconds))


@lru_cache(maxsize=256)
def _table(name: str, num_stages: int, num_microbatches: int, chunks: int) -> Table:
    return schedule(name, num_stages, num_microbatches, chunks)


@lru_cache(maxsize=256)
def _locked(name: str, num_stages: int, num_microbatches: int, chunks: int) -> Table:
    return lock_step(_table(name, num_stages, num_microbatches, chunks))


@lru_cache(maxsize=1024)
def _asynchronous(name: str, num_stages: int, num_microbatches: int, chunks: int, pieces: Pieces) -> float:
    table = _table(name, num_stages, num_microbatches, chunks)
    times = _times(table, pieces)
    last = table.num_pieces - 1

    def needs(op: Op) -> list[tuple[Op, float]]:
        """What the op waits for, for as long as the other piece's op takes."""
        return [(other, times[other[0]][other[1]]) for other, _ in op_needs(op, last + 1, _ONES)]

    start = earliest(table.orders(), lambda op: times[op[0]][op[1]], needs)
    return float(max(begin + times[op[0]][op[1]] for op, begin in start.items()))


_ONES = np.ones(3)


def _times(table: Table, pieces: Pieces) -> list[Sequence[float]]:
    """Seconds [op][piece]; a table that does not split the backward pass has it whole in B."""
    if table.splits_backward:
        return [pieces.forward, pieces.backward, pieces.weight]
    whole = [b + w for b, w in zip(pieces.backward, pieces.weight, strict=True)]
    return [pieces.forward, whole, [0.0] * len(whole)]


@lru_cache(maxsize=1024)
def _in_lock_step(name: str, num_stages: int, num_microbatches: int, chunks: int, pieces: Pieces) -> float:
    table = _locked(name, num_stages, num_microbatches, chunks)
    times = _times(table, pieces)
    seconds = 0.0
    for op in (F, B, W):
        running = table.microbatch[:, op] != IDLE  # [tick, stage]
        piece = np.maximum(table.chunk[:, op], 0) * num_stages + np.arange(num_stages)
        seconds += float(np.where(running, np.asarray(times[op])[piece], 0.0).max(axis=1).sum())
    return seconds
