"""Pages to test with: real plans of real runs, and an audit whose ledger has each verdict. Each is made once."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from meshtrain.audit.copies import Copy
from meshtrain.audit.ledger import STATUSES, Entry, Ledger
from meshtrain.cost.decisions import Outcome
from meshtrain.run.arguments import parse
from meshtrain.run.audit import AuditReport
from meshtrain.run.cluster_file import read_cluster
from meshtrain.run.config import Request, load
from meshtrain.run.page import page_data
from meshtrain.run.plan import PlanReport, make_plan_report, search_layout

CONFIGS = Path(__file__).parents[3] / "configs"

# case -> (run, layout, GPUs, overrides)
CASES: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "dense": ("llama3_8b", "tensor_zero3", 16, ()),
    "pipeline": ("llama3_8b", "pipeline_zb", 16, ("--config.model.num_layers=8",)),
    "context": ("llama3_8b", "context_ring_zigzag", 16, ("--config.model.num_layers=2",)),
    "experts": ("quickstart_moe", "expert_tensor", 8, ()),
    "many": ("llama3_405b", "llama3_405b_8k", 16384, ()),
}


def request(case: str) -> Request:
    run, layout, _, overrides = CASES[case]
    return load(
        parse(
            ["--config", str(CONFIGS / f"runs/{run}.py"), "--layout", str(CONFIGS / f"layouts/{layout}.py"), *overrides]
        )
    )


@lru_cache
def plan(case: str) -> PlanReport:
    asked = request(case)
    cluster = read_cluster(str(CONFIGS / "clusters/h100_roce.py"))
    return make_plan_report(asked.config, asked.layout, asked.layout_name, cluster, CASES[case][2])


@lru_cache
def outcome() -> Outcome:
    """One search for all of them: what a page shows of it does not depend on the layout."""
    return search_layout(request("dense").config, plan("dense").cluster, 16)


@lru_cache
def data(case: str) -> dict[str, Any]:
    return page_data(request(case).config, plan(case), outcome())


@lru_cache
def audited() -> dict[str, Any]:
    return page_data(request("dense").config, plan("dense"), outcome(), audit("dense"))


def audit(case: str) -> AuditReport:
    """What a compiler might have made of the plan: each collective with the verdict whose turn it is."""
    report = plan(case)
    entries = []
    for i, one in enumerate(report.collectives):
        status = STATUSES[i % len(STATUSES)]
        sent = one.wire_bytes
        entries.append(
            Entry(
                status, one.kind, one.axes, one.phase, one.dim, one.why,
                planned=0.0 if status == "surprising" else sent,
                found={"missing": 0.0, "larger": 2 * sent}.get(status, sent),
                times=one.count, source="model/block.py:61", note="a wider dtype than planned" * (status == "larger"),
                overlapped=sent / 2 if status == "expected" else 0.0,
            )
        )  # fmt: skip
    return AuditReport(
        name=report.name, words=report.words, mesh=report.place.axis_sizes, num_devices=report.place.num_devices,
        gpu=report.cluster.gpu, peak=int(report.memory.peak * 0.98), state=report.memory.state,
        temporary=report.memory.peak - report.memory.state, predicted=report.memory.peak, ledger=Ledger(tuple(entries)),
        found=(), flops=1.1e15, model_flops=1e15, library_attention=True,
        copies=(Copy(500_000_000, 32, "bf16", (8192, 4096), "model/attention.py:71", "transpose"),),
        cannot_tell=("how much runs beside compute",), seconds=12.0,
    )  # fmt: skip
