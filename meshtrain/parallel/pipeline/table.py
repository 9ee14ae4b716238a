"""`Table`: a pipeline schedule as data. Who runs which op of which microbatch at which tick; plain numpy.

    table[tick, op, stage] -> (microbatch, chunk)        op: F forward, B backward, W weight gradients

A stage runs at most one op of each kind in a tick, F before B before W. In a table without W, B is the whole backward
pass; with W, B makes only the gradient of the stage's input. The model is cut into chunks x stages pieces: piece k is
chunk k // stages of stage k % stages, so that outputs always travel one stage on, around the ring ("circular").
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshtrain.errors import InputError

OPS = "FBW"  # an op's index in a table is its index here
F, B, W = range(3)
IDLE = -1


@dataclass(frozen=True, eq=False)
class Table:
    """microbatch, chunk: int arrays [tick, op, stage], IDLE where nothing runs. name: for people."""

    name: str
    microbatch: np.ndarray
    chunk: np.ndarray
    num_microbatches: int
    num_chunks: int = 1

    @property
    def num_ticks(self) -> int:
        """Ticks from the first op to the last."""
        return self.microbatch.shape[0]

    @property
    def num_stages(self) -> int:
        """Stages: devices (or groups of them) along the stage axis."""
        return self.microbatch.shape[2]

    @property
    def num_pieces(self) -> int:
        """Pieces that the model is cut into: chunks x stages."""
        return self.num_chunks * self.num_stages

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are ops of their own."""
        return bool((self.microbatch[:, W] != IDLE).any())

    @property
    def kinds(self) -> np.ndarray:
        """bool [tick, op]: which kinds of op any stage runs in a tick. What a lock-step tick costs."""
        return (self.microbatch != IDLE).any(axis=2)

    @cached_property
    def when(self) -> np.ndarray:
        """int [op, piece, microbatch]: the tick of each op, IDLE where the table lacks it."""
        when = np.full((3, self.num_pieces, self.num_microbatches), IDLE)
        tick, op, stage = np.nonzero(self.microbatch != IDLE)
        when[op, self.chunk[tick, op, stage] * self.num_stages + stage, self.microbatch[tick, op, stage]] = tick
        return when

    def orders(self) -> list[list[tuple[int, int, int]]]:
        """For each stage its ops in order, each as (op, piece, microbatch)."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.num_stages)]
        for tick, op, stage in np.argwhere(self.microbatch != IDLE):
            piece = self.chunk[tick, op, stage] * self.num_stages + stage
            found[stage].append((int(op), int(piece), int(self.microbatch[tick, op, stage])))
        return found

    @property
    def live(self) -> np.ndarray:
        """int [stage]: the most saved inputs that a stage holds in one tick, from a piece's F to its B (or W)."""
        last = self.when[W if self.splits_backward else B]
        steps = np.zeros((self.num_stages, self.num_ticks + 1), int)
        for piece in range(self.num_pieces):
            np.add.at(steps[piece % self.num_stages], self.when[F, piece], 1)
            np.add.at(steps[piece % self.num_stages], last[piece] + 1, -1)
        return steps.cumsum(axis=1).max(axis=1)

    @property
    def num_sends(self) -> dict[str, int]:
        """Activations sent to another stage in a step, and gradients sent back, over the whole pipeline."""
        crossings = self.num_pieces - 1 if self.num_stages > 1 else 0
        backward = crossings * self.num_microbatches if (self.when[B] != IDLE).any() else 0
        return {"forward": crossings * self.num_microbatches, "backward": backward}


def table_from_ticks(name: str, when: np.ndarray, num_stages: int) -> Table:
    """The table that runs op `o` of piece `k` and microbatch `i` at tick when[o, k, i] (IDLE: not at all)."""
    _, num_pieces, num_microbatches = when.shape
    shape = (int(when.max()) + 1, 3, num_stages)
    microbatch, chunk = np.full(shape, IDLE), np.full(shape, IDLE)
    op, piece, index = np.nonzero(when != IDLE)
    cells = (when[op, piece, index], op, piece % num_stages)
    if len(set(zip(*cells, strict=True))) < len(op):
        raise ValueError(f"{name}: a stage would run two ops of one kind in one tick")
    microbatch[cells], chunk[cells] = index, piece // num_stages
    return Table(name, microbatch, chunk, num_microbatches, num_pieces // num_stages)


def check_table(table: Table) -> None:
    """InputError for the first fault of a schedule.

    Each op stands once for each piece and microbatch; W for all or for none. A message needs a tick to arrive: F comes
    after the F of the piece before it, B after the B of the piece after it. Within a tick F runs before B before W, so
    B may share the tick of its own F, and W that of its own B.
    """
    _check_cells(table)
    when = table.when
    expected = [F, B, W] if table.splits_backward else [F, B]
    for op in expected:
        missing = np.argwhere(when[op] == IDLE)
        if len(missing):
            raise _fault(table, f"{_op_name(table, op, *map(int, missing[0]))} is missing")
    for before, after, same_tick in _dependencies(when, expected):
        late = np.argwhere(after[1] < before[1] + (0 if same_tick else 1))
        if len(late):
            k, i = map(int, late[0])
            first, second = (_op_name(table, o, k + shift, i) for (o, _, shift) in (before, after))
            raise _fault(
                table,
                f"{second} is at tick {after[1][k, i]}, but it needs {first}, which is at tick {before[1][k, i]}"
                + ("" if same_tick else ", and a message arrives one tick later"),
            )


def _check_cells(table: Table) -> None:
    """Ranges, and each op at most once."""
    busy = table.microbatch != IDLE
    for name, values, size in (
        ("microbatch", table.microbatch, table.num_microbatches),
        ("chunk", table.chunk, table.num_chunks),
    ):
        wrong = np.argwhere(busy & ((values < 0) | (values >= size)))
        if len(wrong):
            tick, op, stage = wrong[0]
            raise _fault(
                table,
                f"{OPS[op]} at tick {tick} on stage {stage} names {name} {values[tick, op, stage]}, but there are"
                f" {size}, numbered from 0",
            )
    tick, op, stage = np.nonzero(busy)
    count = np.zeros_like(table.when)
    np.add.at(count, (op, table.chunk[busy] * table.num_stages + stage, table.microbatch[busy]), 1)
    twice = np.argwhere(count > 1)
    if len(twice):
        raise _fault(table, f"{_op_name(table, *map(int, twice[0]))} stands {count[tuple(twice[0])]} times")


Side = tuple[int, np.ndarray, int]  # op, its ticks [piece, microbatch], the piece that row 0 stands for


def _dependencies(when: np.ndarray, ops: list[int]) -> list[tuple[Side, Side, bool]]:
    """(what comes first, what needs it, whether both may share a tick)."""
    pairs: list[tuple[Side, Side, bool]] = [((F, when[F, :-1], 0), (F, when[F, 1:], 1), False)]
    if B in ops:
        pairs += [
            ((F, when[F], 0), (B, when[B], 0), True),
            ((B, when[B, 1:], 1), (B, when[B, :-1], 0), False),
        ]
    if W in ops:
        pairs.append(((B, when[B], 0), (W, when[W], 0), True))
    return pairs


def _op_name(table: Table, op: int, piece: int, microbatch: int) -> str:
    chunk = f", chunk {piece // table.num_stages}" if table.num_chunks > 1 else ""
    return f"{OPS[op]} of microbatch {microbatch} on stage {piece % table.num_stages}{chunk}"


def _fault(table: Table, text: str) -> InputError:
    return InputError(f"pipeline.schedule {table.name}: {text}.")
