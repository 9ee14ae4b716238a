"""What a page shows, as plain JSON values: sections from the plan's report, and from the audit's if there is one.

Nothing is worked out here that another module knows; sizes in bytes of one device, times in seconds of one step.
"""

import dataclasses
from typing import Any

from meshtrain.cost.decisions import Outcome
from meshtrain.run.audit.report import AuditReport
from meshtrain.run.config import RunConfig
from meshtrain.run.page.decisions import decisions_section
from meshtrain.run.page.devices import arrays_section, mesh_section
from meshtrain.run.page.memory import memory_section
from meshtrain.run.page.schedule import balance_section, pipeline_section
from meshtrain.run.page.tensor import tensor_section
from meshtrain.run.page.traffic import audited_ledger, planned_ledger
from meshtrain.run.plan.report import PlanReport

TOKENS = 1e9  # that a price is told for


def page_data(
    config: RunConfig, report: PlanReport, outcome: Outcome | None = None, audit: AuditReport | None = None
) -> dict[str, Any]:
    """All sections of the page of a run under a layout. outcome: what a search decided for this run on this cluster;
    without one it is asked now. audit: what the compiler made of the layout."""
    return {
        "kind": "plan" if audit is None else "audit",
        "run": _run(config, report),
        "headline": _headline(report),
        "memory": memory_section(config, report, audit),
        "time": _time(report),
        "decisions": decisions_section(config, report, outcome),
        "mesh": mesh_section(report),
        "arrays": arrays_section(config, report),
        "tensor_parallel": tensor_section(config, report),
        "pipeline": pipeline_section(config, report),
        "balance": balance_section(config, report),
        "traffic": planned_ledger(report) if audit is None else audited_ledger(report, audit),
        "compiled": None if audit is None else _compiled(audit),
        "findings": [{"severity": finding.severity, "text": str(finding)} for finding in report.findings],
    }


def _run(config: RunConfig, report: PlanReport) -> dict[str, Any]:
    return {
        "layout": report.name,
        "workdir": config.workdir,
        "cluster": report.cluster.name,
        "gpu": report.cluster.gpu,
        "num_devices": report.place.num_devices,
        "num_parameters": report.num_parameters,
        "global_batch": report.global_batch,
        "length": report.length,
        "compute": config.precision.compute,
        "remat": report.place.layout.remat,
        "words": report.words,
    }


def _time(report: PlanReport) -> dict[str, Any]:
    time = report.time
    return {
        "seconds": time.seconds,
        "parts": time.parts,
        "hidden": time.hidden,
        "exposed": sum(time.exposed.values()),
        "hidden_in_all": sum(time.hidden.values()),
    }


def _headline(report: PlanReport) -> dict[str, Any]:
    """The numbers that most people ask for; None where there is none."""
    time, goodput = report.time, report.goodput
    per_second = time.tokens_per_second
    return {
        "seconds": time.seconds,
        "tokens_per_second": per_second,
        "mfu": time.mfu,
        "hfu": time.hfu,
        "flops_per_device": time.flops_per_device,
        "peak": report.memory.peak,
        "limit": report.limit,
        "verdict": report.verdict,
        "bubble": None if report.pipeline is None else report.pipeline.lock_step_idle,
        "goodput": None if goodput is None else dataclasses.asdict(goodput) | {"share": goodput.share},
        "gpu_hours": report.place.num_devices / 3600 / per_second * TOKENS,
        "usd": None if report.cost_per_token is None else report.cost_per_token * TOKENS,
        "run": dataclasses.asdict(report.bill) | {"steps": report.num_steps},
    }


def _compiled(audit: AuditReport) -> dict[str, Any]:
    """What only the compiler knows."""
    return {
        "gpu": audit.gpu,
        "peak": audit.peak,
        "predicted": audit.predicted,
        "flops": audit.flops,
        "model_flops": audit.model_flops,
        "library_attention": audit.library_attention,
        "copies": [dataclasses.asdict(copy) for copy in audit.copies],
        "cannot_tell": list(audit.cannot_tell),
        "seconds": audit.seconds,
    }
