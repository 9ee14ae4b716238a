"""What a schedule's table costs in time: asynchronous (each stage goes on as soon as it can) and in lock step.

The executor runs in lock step: a tick lasts as long as the kinds of op that any stage runs in it. `lock_step` turns an
asynchronous table into the one that the executor should run; both bubbles are idle share = 1 - work / (stages x time).
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.table import IDLE, B, F, Table, W, table_from_ticks

Op = tuple[int, int, int]  # op, piece, microbatch
Time = int | float
Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Costs:
    """Time of one piece's forward, of the gradient of its input, and of the gradient of its weights; any unit."""

    forward: Time = 1
    backward: Time = 1
    weight: Time = 1

    def of(self, split: bool) -> np.ndarray:
        """float [op]: time of F, B, W in a table that splits the backward pass, or not."""
        return np.array([self.forward, self.backward + (0 if split else self.weight), self.weight], float)


EQUAL = Costs()


def earliest(
    queues: Sequence[Sequence[Item]],
    duration: Callable[[Item], Time],
    needs: Callable[[Item], list[tuple[Item, Time]]],
) -> dict[Item, Time]:
    """The earliest start of each item: each queue runs its items in order, one at a time.

    needs(item) lists (other item, time from the other's start until this one may start). InputError where the queues
    wait for each other for ever.
    """
    start: dict[Item, Time] = {}
    free: list[Time] = [0] * len(queues)
    position = [0] * len(queues)
    moved = True
    while moved:
        moved = False
        for number, queue in enumerate(queues):
            while position[number] < len(queue):
                item = queue[position[number]]
                required = needs(item)
                if any(other not in start for other, _ in required):
                    break
                start[item] = max([free[number], *(start[other] + delay for other, delay in required)])
                free[number] = start[item] + duration(item)
                position[number] += 1
                moved = True
    stuck = [queue[at] for queue, at in zip(queues, position, strict=True) if at < len(queue)]
    if stuck:
        raise InputError(f"the schedule's order cannot run: these ops wait for each other for ever: {stuck}")
    return start


def op_needs(op: Op, num_pieces: int, delays: np.ndarray) -> list[tuple[Op, Time]]:
    """What an op waits for: the op before it in its chain, for as long as that takes (delays [op])."""
    kind, piece, microbatch = op
    if kind == F:
        return [((F, piece - 1, microbatch), delays[F])] if piece else []
    if kind == W:
        return [((B, piece, microbatch), delays[B])]
    own: list[tuple[Op, Time]] = [((F, piece, microbatch), delays[F])]
    return own if piece == num_pieces - 1 else [*own, ((B, piece + 1, microbatch), delays[B])]


def asynchronous_time(table: Table, costs: Costs = EQUAL) -> Time:
    """Time of a step where each stage runs its ops in the table's order, each as soon as its inputs are there.

    Messages take no time. The unit is that of `costs`, which are of one piece: 1/chunks of a stage.
    """
    times = costs.of(table.splits_backward)
    start = earliest(table.orders(), lambda op: times[op[0]], lambda op: op_needs(op, table.num_pieces, times))
    return max(begin + times[op[0]] for op, begin in start.items())


def lock_step_time(table: Table, costs: Costs = EQUAL) -> float:
    """Time of a step in which all stages go from tick to tick together, each paying for the kinds any of them runs."""
    return float((table.kinds * costs.of(table.splits_backward)).sum())


def work(table: Table, costs: Costs = EQUAL) -> float:
    """Time that the ops of all stages take together."""
    return float(((table.microbatch != IDLE).sum(axis=(0, 2)) * costs.of(table.splits_backward)).sum())


def ideal_idle(table: Table, costs: Costs = EQUAL) -> float:
    """Idle share (the bubble) of the asynchronous table."""
    return float(1 - work(table, costs) / (table.num_stages * asynchronous_time(table, costs)))


def lock_step_idle(table: Table, costs: Costs = EQUAL) -> float:
    """Idle share (the bubble) when the table is run in lock step, masked work counted as idle."""
    return 1 - work(table, costs) / (table.num_stages * lock_step_time(table, costs))


def table_from_orders(name: str, orders: Sequence[Sequence[Op]], num_stages: int) -> Table:
    """The table that runs each stage's ops in this order, each in the earliest tick, one op in a tick (unit costs)."""
    num_pieces = 1 + max(piece for order in orders for _, piece, _ in order)
    ones = np.ones(3)
    start = earliest(orders, lambda op: 1, lambda op: op_needs(op, num_pieces, ones))
    return _table(name, start, num_pieces, num_stages)


def lock_step(table: Table) -> Table:
    """The table that the executor runs: F, B and W of a tick side by side, so that no tick is longer than it must be.

    Each stage keeps its order of F, of B and of W. F runs as early as its input allows; B as early as its gradient
    allows, but after every F that stands before it in the given order (so GPipe stays GPipe); W of one piece runs in
    the same tick on all stages, so that no tick pays for W while a stage has none. The price is memory: with F and B
    in one tick a stage takes in a microbatch every tick, and the answer is 2 * (stages - 1 - stage) ticks away: up to
    2 * stages - 1 live inputs where the asynchronous 1F1B needs `stages`.
    """
    orders = table.orders()
    preceding: dict[Op, Op] = {}
    for order in orders:
        latest: Op | None = None
        for op in order:
            if op[0] == F:
                latest = op
            elif op[0] == B and latest:
                preceding[op] = latest
    same_lap = {op: [(B, k, op[2]) for k in _lap(op[1], table.num_stages)] for o in orders for op in o if op[0] == W}

    def needs(op: Op) -> list[tuple[Op, Time]]:
        if op[0] == W:
            return [(other, 0) for other in same_lap[op]]
        found = op_needs(op, table.num_pieces, np.ones(3))
        if op[0] == B:  # its own F, and those before it, may share the tick
            found = [(other, 0 if other[0] == F else 1) for other, _ in found]
            found += [(preceding[op], 0)] if op in preceding else []
        return found

    queues = [[op for op in order if op[0] == kind] for kind in (F, B, W) for order in orders]
    start = earliest(queues, lambda op: 1, needs)
    return _table(table.name, start, table.num_pieces, table.num_stages)


def forward_only(table: Table) -> Table:
    """The forward passes of a table, without gaps: what an evaluation runs."""
    orders = [[op for op in order if op[0] == F] for order in table.orders()]
    return table_from_orders(table.name, orders, table.num_stages)


def _lap(piece: int, num_stages: int) -> range:
    first = piece // num_stages * num_stages
    return range(first, first + num_stages)


def _table(name: str, start: dict[Op, Time], num_pieces: int, num_stages: int) -> Table:
    when = np.full((3, num_pieces, 1 + max(op[2] for op in start)), IDLE)
    for op, tick in start.items():
        when[op] = int(tick)
    return table_from_ticks(name, when, num_stages)
