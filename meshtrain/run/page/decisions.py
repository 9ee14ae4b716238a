"""The order of decisions that a search takes for this run on this cluster, and the best that it finds."""

import dataclasses
from typing import Any

from meshtrain.cost.cluster import USABLE
from meshtrain.cost.decisions import Outcome
from meshtrain.cost.verdict import describe, waits
from meshtrain.errors import InputError
from meshtrain.run.config import RunConfig
from meshtrain.run.plan.report import PlanReport
from meshtrain.run.plan.search import search_layout


def decisions_section(config: RunConfig, report: PlanReport, outcome: Outcome | None) -> dict[str, Any]:
    """The steps with their inequalities, the best few beside the layout that the page is about; or why there is none.

    Without an outcome it searches.
    """
    usable = {"usable": USABLE * report.limit}
    try:
        outcome = outcome or search_layout(config, report.cluster, report.place.num_devices)
    except InputError as error:
        return usable | {"error": str(error), "steps": [], "best": []}
    given = {
        "words": report.words,
        "given": True,
        "seconds": report.time.seconds,
        "mfu": report.time.mfu,
        "peak": report.memory.peak,
        "parts": report.time.parts,
        "waits": "",
    }
    best = [
        {
            "words": describe(found.choice),
            "given": False,
            "seconds": found.time.seconds,
            "mfu": found.time.mfu,
            "peak": found.memory.peak,
            "parts": found.time.parts,
            "waits": waits(found),
        }
        for found in outcome.others
    ]
    return usable | {
        "error": None,
        "steps": [dataclasses.asdict(decision) for decision in outcome.decisions],
        "best": [given, *best],
    }
