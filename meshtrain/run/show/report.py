"""`Report`: a run under a layout as data: rows, totals, words, batch, decay, findings; text and JSON come from it."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtrain.layout import Finding, Layout, Placement, place_abstract
from meshtrain.layout.finding import ERROR, NOTE, WARNING, merge
from meshtrain.layout.inventory import KINDS, WEIGHT_KINDS, Inventory
from meshtrain.layout.roles import roles, words
from meshtrain.layout.table import Row, by_stage, rows, stage_of, state_bytes
from meshtrain.parallel.attention.balance import balance
from meshtrain.run.config import Request, RunConfig
from meshtrain.run.inventory import check_run
from meshtrain.run.show.pipeline import PipelineFacts, pipeline_facts
from meshtrain.run.startup import step_config
from meshtrain.step.optimizer import decay_mask
from meshtrain.step.state import state_specs


@dataclass(frozen=True)
class Report:
    """All that is told about a run under a layout. `tables` is empty for a class with arrays that cannot be placed."""

    name: str
    place: Placement
    arrays: Inventory
    words: str
    roles: dict[str, list[str]]
    tables: dict[str, list[Row]]
    state_bytes: dict[str, int]
    stage: int
    bytes_by_stage: dict[int, int] | None
    global_batch: int
    length: int
    balance: dict[int | None, list[int]]  # window -> blocks of attention of each shard of the length
    pipeline: PipelineFacts | None
    decays: dict[str, bool]
    weight_decay: float
    findings: tuple[Finding, ...]

    def count(self, severity: str) -> int:
        """How many findings of a severity there are."""
        return sum(finding.severity == severity for finding in self.findings)


def make_report(
    config: RunConfig, layout: Mapping[str, Any], name: str, num_devices: int, fast_devices: int | None = None
) -> Report:
    """The report for any number of devices; they need not exist. InputError only where there is no mesh to speak of."""
    findings: list[Finding] = []
    declared = Layout.parse(layout, name, findings=findings)
    place = place_abstract(declared, num_devices)
    step = step_config(config)
    arrays, found = check_run(step, config.global_batch, config.data.length, place, fast_devices)
    findings = merge([*findings, *found])
    sound = all(finding.severity != ERROR for finding in findings)
    specs = state_specs(config.model, config.optimizer).params
    return Report(
        name=name,
        place=place,
        arrays=arrays,
        words=words(place),
        roles=roles(place),
        tables={kind: rows(place, kind, arrays.named(kind)) for kind in KINDS} if sound else {},
        state_bytes=state_bytes(place, arrays) if sound else {},
        stage=stage_of(place),
        bytes_by_stage=by_stage(place, arrays) if sound else None,
        global_batch=config.global_batch,
        length=config.data.length,
        balance=_balance(place, config) if sound else {},
        pipeline=pipeline_facts(place, config.model.num_stacked) if sound else None,
        decays=dict(zip([path for path, _ in arrays.params], _leaves(decay_mask(specs)), strict=True)),
        weight_decay=config.optimizer.weight_decay,
        findings=tuple(findings),
    )


def _balance(place: Placement, config: RunConfig) -> dict[int | None, list[int]]:
    """Window of the layers that have it -> blocks of attention for each shard of the length."""
    counts = {window: balance(place, config.data.length, window) for window in config.model.windows}
    return {window: blocks for window, blocks in counts.items() if blocks}


def _leaves(tree: Any) -> list[bool]:
    import jax

    return list(jax.tree.leaves(tree))


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON values; sizes in bytes per device."""
    return {
        "layout": report.name,
        "words": report.words,
        "mesh": report.place.axis_sizes,
        "num_devices": report.place.num_devices,
        "roles": report.roles,
        "batch": {
            "global_batch": report.global_batch,
            "length": report.length,
            "batch_parts": report.place.num_shards("batch"),
            "microbatches": report.place.num_microbatches,
            "tokens_per_step": report.global_batch * report.length,
        },
        "attention_blocks": [{"window": window, "per_shard": blocks} for window, blocks in report.balance.items()],
        "pipeline": dataclasses.asdict(report.pipeline) if report.pipeline else None,
        "arrays": [dataclasses.asdict(row) | {"cut": row.cut} for kind in KINDS for row in report.tables.get(kind, [])],
        "state_bytes_per_device": {kind: report.state_bytes.get(kind) for kind in WEIGHT_KINDS},
        "zero_stage": report.stage,
        "state_bytes_per_device_by_zero_stage": report.bytes_by_stage,
        "weight_decay": report.weight_decay,
        "decays": report.decays,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
        "errors": report.count(ERROR),
        "warnings": report.count(WARNING),
        "notes": report.count(NOTE),
    }


def default_devices(request: Request) -> int:
    """As many as a mesh of fixed sizes takes; else what the run's file says; else 8."""
    mesh = request.layout.get("mesh")
    sizes = mesh.values() if isinstance(mesh, Mapping) else []
    if sizes and all(isinstance(size, int) and size > 0 for size in sizes):
        return math.prod(sizes)
    return request.config.cpu_devices or 8
