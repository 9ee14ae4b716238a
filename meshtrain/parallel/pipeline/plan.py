"""What the executor's scan reads at each tick: the table, and in which buffer slot each message waits for its use.

A slot holds one message from the tick in which it arrives to the tick of its last use, both included. `check_plan`
plays the whole schedule with names in place of arrays, so that a slot overwritten too early is found before any step.
"""

from dataclasses import dataclass, fields

import numpy as np

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.table import IDLE, B, F, Table, W


@dataclass(frozen=True, eq=False)
class Plan:
    """int arrays [tick, stage], IDLE where there is nothing to do, and the number of slots of each buffer.

    f_, b_, w_ microbatch and chunk: the ops. x: inputs of pieces, filled by the piece before (x_arrival), read by F
    (f_x) and B (b_x). dy: gradients of outputs, filled by the piece behind (dy_arrival), read by B (b_dy). tape: what B
    leaves for W (b_tape, w_tape). The first piece reads tokens and the last gets its gradient from the loss: no slots.
    The last piece has no F: its B does all of it, since nobody waits for its output. A plan without any B is of the
    forward pass alone; there the last piece's F makes the loss.

    keeps: B starts from what F has left (f_kept, b_kept) and not from the input again. Then inputs are read by F alone,
    the last piece has an F like the others, and its output waits for the loss that its B makes (f_y, b_y).
    """

    f_microbatch: np.ndarray
    f_chunk: np.ndarray
    f_x: np.ndarray
    x_arrival: np.ndarray
    b_microbatch: np.ndarray
    b_chunk: np.ndarray
    b_x: np.ndarray
    b_dy: np.ndarray
    dy_arrival: np.ndarray
    w_microbatch: np.ndarray
    w_chunk: np.ndarray
    b_tape: np.ndarray
    w_tape: np.ndarray
    f_kept: np.ndarray
    b_kept: np.ndarray
    f_y: np.ndarray
    b_y: np.ndarray
    num_x: int
    num_dy: int
    num_tape: int
    num_kept: int
    num_y: int
    num_stages: int
    num_chunks: int
    num_microbatches: int

    @property
    def kinds(self) -> np.ndarray:
        """bool [tick, op]: which kinds of op any stage runs in a tick."""
        return np.stack([(x != IDLE).any(axis=1) for x in (self.f_microbatch, self.b_microbatch, self.w_microbatch)], 1)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays [tick, stage] by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


def make_plan(table: Table, keeps: bool = False) -> Plan:
    """The plan of a checked table, of a whole step or of the forward pass alone. keeps: see `Plan`."""
    when, p, last = table.when, table.num_stages, table.num_pieces - 1
    ticks = {op: when[op] for op in (F, B, W)}
    trains = bool((when[B] != IDLE).any())
    names = [field.name for field in fields(Plan) if field.type is np.ndarray]
    arrays = {name: np.full((table.num_ticks, p), IDLE, np.int32) for name in names}
    for op, letter in ((F, "f"), (B, "b"), (W, "w")):
        arrays[f"{letter}_microbatch"][:] = table.microbatch[:, op]
        arrays[f"{letter}_chunk"][:] = table.chunk[:, op]
    keeps &= trains
    if trains and not keeps:
        dropped = (when[F, last], last % p)
        arrays["f_microbatch"][dropped] = arrays["f_chunk"][dropped] = IDLE

    def hold(first: int, arrival: np.ndarray, uses: dict[str, np.ndarray], fills: str) -> int:
        """Give a slot to each message of pieces first, first + 1, ...; returns the number of slots."""
        end = np.max(list(uses.values()), axis=0)
        pieces = np.arange(first, first + len(arrival))
        slots, number = _slots(arrival, end, pieces % p, p)
        stage = np.broadcast_to((pieces % p)[:, None], slots.shape)
        arrays[fills][arrival, stage] = slots
        for name, tick in uses.items():
            arrays[name][tick, stage] = slots
        return number

    x_uses = {"f_x": ticks[F][1:]} | ({"b_x": ticks[B][1:]} if trains and not keeps else {})
    num_x = num_dy = num_tape = num_kept = num_y = 0
    if last > 0:
        num_x = hold(1, ticks[F][:-1] + 1, x_uses, "x_arrival")
        if trains:
            num_dy = hold(0, ticks[B][1:] + 1, {"b_dy": ticks[B][:-1]}, "dy_arrival")
            arrays["f_x"][arrays["f_microbatch"] == IDLE] = IDLE
    if table.splits_backward:
        num_tape = hold(0, ticks[B], {"w_tape": ticks[W]}, "b_tape")
    if keeps:
        num_kept = hold(0, ticks[F], {"b_kept": ticks[B]}, "f_kept")
        num_y = hold(last, ticks[F][last:], {"b_y": ticks[B][last:]}, "f_y")
    plan = Plan(
        **arrays, num_x=num_x, num_dy=num_dy, num_tape=num_tape, num_kept=num_kept, num_y=num_y, num_stages=p,
        num_chunks=table.num_chunks, num_microbatches=table.num_microbatches,
    )  # fmt: skip
    check_plan(plan)
    return plan


def _slots(arrival: np.ndarray, end: np.ndarray, stages: np.ndarray, num_stages: int) -> tuple[np.ndarray, int]:
    """A slot for each interval [arrival, end] of [piece, microbatch]; as few as can be on the stage that needs most."""
    slots = np.full(arrival.shape, IDLE)
    most = 0
    for stage in range(num_stages):
        intervals = sorted((arrival[k, i], k, i) for k in np.flatnonzero(stages == stage) for i in range(end.shape[1]))
        busy_until: list[int] = []
        for begin, k, i in intervals:
            free = next((slot for slot, until in enumerate(busy_until) if until < begin), None)
            if free is None:
                free = len(busy_until)
                busy_until.append(IDLE)
            busy_until[free] = end[k, i]
            slots[k, i] = free
        most = max(most, len(busy_until))
    return slots, most


Name = tuple[int, int] | None  # piece and microbatch that an array belongs to


def check_plan(plan: Plan) -> None:
    """Play the plan with names for arrays; InputError for the first op that would find another array than its own."""
    p, last = plan.num_stages, plan.num_stages * plan.num_chunks - 1
    a = {name: value.tolist() for name, value in plan.arrays.items()}
    buffers: dict[str, list[list[Name]]] = {name: [[None] * size for _ in range(p)] for name, size in _buffers(plan)}
    sent: dict[str, list[Name]] = {"x": [None] * p, "dy": [None] * p}

    def expect(buffer: str, stage: int, slot: int, name: tuple[int, int], tick: int) -> None:
        found = buffers[buffer][stage][slot] if slot != IDLE else None
        if found != name:
            raise InputError(
                f"pipeline plan: at tick {tick} stage {stage} needs {buffer} of piece {name[0]}, microbatch {name[1]},"
                f" in slot {slot}, which holds {found}"
            )

    for tick in range(len(a["f_x"])):
        arriving = {"x": [sent["x"][s - 1] for s in range(p)], "dy": [sent["dy"][(s + 1) % p] for s in range(p)]}
        sent = {"x": [None] * p, "dy": [None] * p}
        for s in range(p):
            for name in ("x", "dy"):
                if a[f"{name}_arrival"][tick][s] != IDLE:
                    buffers[name][s][a[f"{name}_arrival"][tick][s]] = arriving[name][s]
            if (i := a["f_microbatch"][tick][s]) != IDLE:
                k = a["f_chunk"][tick][s] * p + s
                if k > 0:
                    expect("x", s, a["f_x"][tick][s], (k, i), tick)
                sent["x"][s] = (k + 1, i)
                for name in ("kept", "y"):
                    if (slot := a[f"f_{name}"][tick][s]) != IDLE:
                        buffers[name][s][slot] = (k, i)
            if (i := a["b_microbatch"][tick][s]) != IDLE:
                k = a["b_chunk"][tick][s] * p + s
                if plan.num_kept:
                    expect("kept", s, a["b_kept"][tick][s], (k, i), tick)
                    if k == last:
                        expect("y", s, a["b_y"][tick][s], (k, i), tick)
                elif k > 0:
                    expect("x", s, a["b_x"][tick][s], (k, i), tick)
                if k < last:
                    expect("dy", s, a["b_dy"][tick][s], (k, i), tick)
                sent["dy"][s] = (k - 1, i)
                if plan.num_tape:
                    buffers["tape"][s][a["b_tape"][tick][s]] = (k, i)
            if (i := a["w_microbatch"][tick][s]) != IDLE:
                expect("tape", s, a["w_tape"][tick][s], (a["w_chunk"][tick][s] * p + s, i), tick)


def _buffers(plan: Plan) -> list[tuple[str, int]]:
    return [(name, getattr(plan, f"num_{name}")) for name in ("x", "dy", "tape", "kept", "y")]
