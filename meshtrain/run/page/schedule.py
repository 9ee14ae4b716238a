"""What is scheduled: the pipeline's table as cells to draw, and the blocks of attention that each shard computes."""

from typing import Any

import numpy as np

from meshtrain.layout.order import num_chunks
from meshtrain.parallel.attention.balance import BLOCKS
from meshtrain.parallel.attention.schedule import ring_schedule
from meshtrain.parallel.pipeline import Table, ideal_idle, lock_step_idle, schedule
from meshtrain.parallel.pipeline.table import IDLE, OPS
from meshtrain.run.config import RunConfig
from meshtrain.run.plan.report import PlanReport
from meshtrain.step.pipeline import pipeline_table

MOST_OPS = 5000  # that are drawn of one table


def pipeline_section(config: RunConfig, report: PlanReport) -> dict[str, Any] | None:
    """Both forms of the schedule: as the executor runs it, and with each stage as fast as its inputs allow."""
    facts, pipeline = report.pipeline, report.place.layout.pipeline
    if facts is None or pipeline is None:
        return None
    locked = pipeline_table(report.place)
    free = schedule(pipeline.schedule, facts.num_stages, pipeline.microbatches, pipeline.repeats)
    return {
        "schedule": facts.schedule,
        "num_stages": facts.num_stages,
        "num_microbatches": facts.num_microbatches,
        "repeats": facts.repeats,
        "layers": list(facts.layers),
        "live_inputs": facts.live_inputs,
        "sends": facts.sends,
        "tables": {
            "locked": cells(locked) | {"idle": lock_step_idle(locked)},
            "free": cells(free) | {"idle": ideal_idle(free)},
        },
    }


def cells(table: Table) -> dict[str, Any]:
    """ops: [stage, column, op, microbatch, chunk], one after the other in one flat list; ticks: of each column.

    A tick has one column where no stage runs more than one op in it, else one for each kind of op that any stage runs.
    Columns behind the first MOST_OPS ops are cut off; `num_columns` counts them all.
    """
    busy = table.microbatch != IDLE
    single = bool((busy.sum(axis=1) <= 1).all())
    columns = [(t, op) for t in range(table.num_ticks) for op in ([None] if single else np.flatnonzero(table.kinds[t]))]
    ops: list[int] = []
    drawn = 0
    for column, (tick, kind) in enumerate(columns):
        kinds = range(len(OPS)) if kind is None else [int(kind)]
        here = [(int(stage), op) for op in kinds for stage in np.flatnonzero(busy[tick, op])]
        if len(ops) // 5 + len(here) > MOST_OPS:
            break
        drawn = column + 1
        for stage, op in here:
            place = (tick, op, stage)
            ops += [stage, column, op, int(table.microbatch[place]), int(table.chunk[place])]
    return {"num_columns": len(columns), "ticks": [tick for tick, _ in columns[:drawn]], "ops": ops}


def balance_section(config: RunConfig, report: PlanReport) -> dict[str, Any] | None:
    """For each kind of layer the blocks of every shard, in one piece and in the zigzag; None where rows are not cut."""
    place, length = report.place, report.length
    num_shards, chunks = num_chunks(place)
    if num_shards == 1:
        return None
    orders = {"contiguous": 1, "zigzag": 2}
    return {
        "order": "zigzag" if chunks == 2 else "contiguous",
        "num_shards": num_shards,
        "blocks": BLOCKS,
        "windows": [
            {"window": window} | {name: _blocks(num_shards, n, length, window) for name, n in orders.items()}
            for window in config.model.windows
        ],
    }


def _blocks(num_shards: int, chunks: int, length: int, window: int | None) -> list[int] | None:
    """None where the length does not divide into so many chunks."""
    if length % (num_shards * chunks):
        return None
    return ring_schedule(num_shards, chunks, length, window).balance(BLOCKS)
