"""The ledger of a step's traffic, line by line: as the plan predicts it, and beside what the compiler made of it."""

from typing import Any

from meshtrain.cost.collective import wire_factor
from meshtrain.cost.links import collective_seconds, group_of, wire
from meshtrain.run.audit.report import AuditReport
from meshtrain.run.plan.report import PlanReport


def planned_ledger(report: PlanReport) -> dict[str, Any]:
    """Every collective of the plan: bytes that a device sends in a step, and seconds on its link, one by one."""
    place, cluster = report.place, report.cluster
    lines = []
    for one in report.collectives:
        group = group_of(place.axis_sizes, one.axes, cluster)
        lines.append(
            {
                "kind": one.kind,
                "axes": list(one.axes),
                "phase": one.phase,
                "dim": one.dim,
                "why": one.why,
                "times": one.count,
                "planned": one.wire_bytes,
                "link": wire(group, cluster).link,
                "seconds": collective_seconds(one.kind, one.bytes, group, cluster) * one.count,
            }
        )
    return {"lines": lines, "planned": sum(line["planned"] for line in lines)}


def audited_ledger(report: PlanReport, audit: AuditReport) -> dict[str, Any]:
    """Every line of the audit: planned and found bytes, what became of the plan, what runs beside compute."""
    place, cluster, ledger = report.place, report.cluster, audit.ledger
    lines = []
    for one in ledger.entries:
        group = group_of(place.axis_sizes, one.axes, cluster)
        # The bytes of one time, from those that all of them send.
        each = one.found / one.times / wire_factor(one.kind, group.size) if one.times and group.size > 1 else 0.0
        lines.append(
            {
                "status": one.status,
                "kind": one.kind,
                "axes": list(one.axes),
                "phase": one.phase,
                "dim": one.dim,
                "why": one.why,
                "note": one.note,
                "source": one.source,
                "times": one.times,
                "planned": one.planned,
                "found": one.found,
                "overlapped": one.overlapped,
                "link": wire(group, cluster).link if group.size > 1 else None,
                "seconds": collective_seconds(one.kind, each, group, cluster) * one.times,
            }
        )
    return {"lines": lines, "planned": ledger.planned, "found": ledger.found, "overlapped": ledger.overlapped}
