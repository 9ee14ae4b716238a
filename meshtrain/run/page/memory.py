"""Memory by class against the device's limit: of the layout, and were its ZeRO rows moved to stage 0, 1, 2 or 3."""

import dataclasses
from typing import Any

from meshtrain.cost.cluster import USABLE
from meshtrain.cost.memory import Memory, predict_memory
from meshtrain.cost.time import step_time
from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.layout.inventory import WEIGHT_KINDS
from meshtrain.layout.table import at_stages, stage_of
from meshtrain.run.audit.report import AuditReport
from meshtrain.run.config import RunConfig
from meshtrain.run.plan.report import PlanReport
from meshtrain.run.startup import step_config


def memory_section(config: RunConfig, report: PlanReport, audit: AuditReport | None = None) -> dict[str, Any]:
    """A bar for the layout and one for each ZeRO stage of it; the stage that the layout has is not drawn twice."""
    place = report.place
    given = {"stage": stage_of(place), "given": True, "seconds": report.time.seconds, **_bar(report.memory)}
    stages = at_stages(place)
    bars = [_variant(config, report, stage, moved) for stage, moved in stages.items() if not _same(place, moved)]
    return {
        "limit": report.limit,
        "usable": USABLE * report.limit,
        "bars": sorted([given, *bars], key=lambda bar: (bar["stage"], not bar["given"])),
        "movable": bool(stages),
        "compiled": None if audit is None else audit.peak,
        "saved": [dataclasses.asdict(array) for array in report.memory.saved],
    }


def _variant(config: RunConfig, report: PlanReport, stage: int, place: Placement) -> dict[str, Any]:
    """The layout at another stage; `refused`: why that cannot be."""
    batch, length = report.global_batch, report.length
    try:
        step = step_config(config)
        memory = predict_memory(step, place, batch, length, packed=config.data.packed)
        time = step_time(step, place, batch, length, report.cluster)
    except InputError as error:
        return {"stage": stage, "given": False, "refused": str(error)}
    return {"stage": stage, "given": False, "seconds": time.seconds, **_bar(memory)}


def _bar(memory: Memory) -> dict[str, Any]:
    return {"parts": [dataclasses.asdict(part) for part in memory.parts], "peak": memory.peak}


def _same(one: Placement, other: Placement) -> bool:
    """Whether both store every class of the state alike."""
    return all(one.rules(kind).rows == other.rules(kind).rows for kind in WEIGHT_KINDS)
