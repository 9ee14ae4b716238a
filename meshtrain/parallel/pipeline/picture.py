"""A schedule as text: one row per stage, time from left to right, one column of characters for each op's time.

In lock step a tick is as wide as the kinds of op that any stage runs in it, so that width is time in both forms.
"""

from meshtrain.parallel.pipeline.table import IDLE, OPS, Table
from meshtrain.parallel.pipeline.timing import ideal_idle, lock_step_idle

CHUNK_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def gantt(table: Table) -> str:
    """The table as text: F3 is the forward pass of microbatch 3, B its backward pass, W its weight gradients.

    A letter behind the number is the chunk; dots are idle time.
    """
    digits = len(str(table.num_microbatches - 1))
    width = 1 + digits + (table.num_chunks > 1)
    single = bool(((table.microbatch != IDLE).sum(axis=1) <= 1).all())
    lines = []
    for stage in range(table.num_stages):
        cells = []
        for tick in range(table.num_ticks):
            kinds = [op for op in range(len(OPS)) if table.kinds[tick, op]]
            if single:  # one op a tick: the tick has one column, whatever its kind
                kinds = [op for op in kinds if table.microbatch[tick, op, stage] != IDLE][:1] or kinds[:1]
            cells.append("".join(_cell(table, tick, op, stage, digits, width) + " " for op in kinds))
        lines.append(f"stage {stage:<{len(str(table.num_stages - 1))}} |" + "".join(cells).rstrip() + "|")
    longest = max(map(len, lines))
    return "\n".join(line[:-1].ljust(longest - 1) + "|" for line in lines)


def _cell(table: Table, tick: int, op: int, stage: int, digits: int, width: int) -> str:
    if table.microbatch[tick, op, stage] == IDLE:
        return "." * width
    chunk = CHUNK_LETTERS[table.chunk[tick, op, stage] % len(CHUNK_LETTERS)] if table.num_chunks > 1 else ""
    return f"{OPS[op]}{table.microbatch[tick, op, stage]:<{digits}}{chunk}"


def summary(asynchronous: Table, locked: Table) -> str:
    """One line: both bubbles, both peaks of live inputs, and what is sent."""
    sends = locked.num_sends
    return (
        f"{locked.name}: {locked.num_stages} stages, {locked.num_microbatches} microbatches,"
        f" {locked.num_chunks} chunks; bubble {ideal_idle(asynchronous):.2%} asynchronous,"
        f" {lock_step_idle(locked):.2%} as run in lock step; live inputs at most {asynchronous.live.max()}"
        f" asynchronous, {locked.live.max()} as run; {sends['forward']} activations and {sends['backward']} gradients"
        " sent"
    )
