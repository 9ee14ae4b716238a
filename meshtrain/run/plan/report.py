"""`PlanReport`: a run under a layout on a cluster, as data: what it holds, what it computes, how long it takes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtrain.cost.cluster import USABLE, Cluster
from meshtrain.cost.collective import Collective
from meshtrain.cost.goodput import Bill, Goodput, bill, goodput
from meshtrain.cost.memory import Memory, predict_memory
from meshtrain.cost.quantity import Seconds
from meshtrain.cost.state import state_bytes
from meshtrain.cost.time import StepTime, step_time
from meshtrain.cost.traffic import predict_traffic
from meshtrain.errors import InputError
from meshtrain.layout import Layout, Placement, place_abstract
from meshtrain.layout.finding import ERROR, Finding, merge
from meshtrain.layout.inventory import Inventory
from meshtrain.layout.roles import words
from meshtrain.model.flops import count_parameters, model_flops_per_token
from meshtrain.parallel.attention.balance import balance
from meshtrain.run.config import RunConfig
from meshtrain.run.inventory import check_run
from meshtrain.run.plan.traffic import Traffic, by_axis
from meshtrain.run.show.pipeline import PipelineFacts, pipeline_facts
from meshtrain.run.startup import step_config

# What a checkpoint holds a step up (a copy to the host; the rest is written beside the training), and how long it takes
# from a failure to the next step.
SAVE_SECONDS, RESTART_SECONDS = 10.0, 600.0


@dataclass(frozen=True)
class PlanReport:
    """All that is told about a run under a layout on a cluster. Sizes in bytes of one device."""

    name: str
    place: Placement
    arrays: Inventory
    cluster: Cluster
    words: str
    num_parameters: int
    global_batch: int
    length: int
    memory: Memory
    state: dict[str, int]
    pipeline: PipelineFacts | None
    balance: dict[int | None, list[int]]
    flops_per_token: float
    time: StepTime
    collectives: tuple[Collective, ...]
    traffic: tuple[Traffic, ...]
    goodput: Goodput | None
    bill: Bill
    num_steps: int
    findings: tuple[Finding, ...]

    @property
    def limit(self) -> float:
        """Bytes of a device."""
        return self.cluster.memory.value

    @property
    def verdict(self) -> str:
        """`fits`, `just fits` (into the last of the memory) or `does not fit`."""
        if self.memory.peak > self.limit:
            return "does not fit"
        return "fits" if self.memory.peak <= USABLE * self.limit else "just fits"

    @property
    def cost_per_token(self) -> float | None:
        """USD, where the cluster has a price."""
        if self.cluster.price is None:
            return None
        return self.cluster.price * self.place.num_devices / 3600 / self.time.tokens_per_second


def make_plan_report(
    config: RunConfig, layout: Mapping[str, Any], name: str, cluster: Cluster, num_devices: int
) -> PlanReport:
    """The report; InputError with all that is wrong where the layout cannot run on this many devices."""
    findings: list[Finding] = []
    declared = Layout.parse(layout, name, findings=findings)
    place = place_abstract(declared, num_devices)
    step = step_config(config)
    length = config.data.length
    arrays, found = check_run(step, config.global_batch, length, place, cluster.fast_gpus)
    findings = merge([*findings, *found])
    errors = [str(finding) for finding in findings if finding.severity == ERROR]
    if errors:
        raise InputError("\n".join(errors))
    model = config.model
    time = step_time(step, place, config.global_batch, length, cluster)
    lost = _goodput(cluster, num_devices)
    sizes = dict(global_batch=config.global_batch, length=length, packed=config.data.packed)
    collectives = tuple(predict_traffic(step, place, **sizes))  # type: ignore[arg-type]
    return PlanReport(
        name=name,
        place=place,
        arrays=arrays,
        cluster=cluster,
        words=words(place),
        num_parameters=count_parameters(model),
        global_batch=config.global_batch,
        length=length,
        memory=predict_memory(step, place, config.global_batch, length, packed=config.data.packed),
        state=state_bytes(step, place),
        pipeline=pipeline_facts(place, model.num_stacked),
        balance={window: blocks for window in model.windows if (blocks := balance(place, length, window))},
        flops_per_token=model_flops_per_token(model, length),
        time=time,
        collectives=collectives,
        traffic=by_axis(place, collectives, cluster),
        goodput=lost,
        bill=bill(cluster, num_devices, Seconds(time.seconds), config.steps, lost.share if lost else 1.0),
        num_steps=config.steps,
        findings=tuple(findings),
    )


def _goodput(cluster: Cluster, num_devices: int) -> Goodput | None:
    """With a copy of the state to the host for each checkpoint and a restart as they usually are."""
    if cluster.failures is None:
        return None
    return goodput(cluster, num_devices, Seconds(SAVE_SECONDS), Seconds(RESTART_SECONDS))


def as_json(report: PlanReport) -> dict[str, Any]:
    """The report as plain JSON values."""
    time = report.time
    return {
        "layout": report.name,
        "cluster": report.cluster.name,
        "words": report.words,
        "mesh": report.place.axis_sizes,
        "num_devices": report.place.num_devices,
        "num_parameters": report.num_parameters,
        "global_batch": report.global_batch,
        "length": report.length,
        "memory": {
            "parts": [dataclasses.asdict(part) for part in report.memory.parts],
            "saved_by_a_layer": [dataclasses.asdict(array) for array in report.memory.saved],
            "peak": report.memory.peak,
            "limit": report.limit,
            "verdict": report.verdict,
        },
        "state_bytes_per_device": report.state,
        "bubble": None if report.pipeline is None else report.pipeline.lock_step_idle,
        "attention_blocks": [{"window": window, "per_shard": blocks} for window, blocks in report.balance.items()],
        "model_flops_per_token": report.flops_per_token,
        "step_seconds": time.seconds,
        "parts": dict(time.parts),
        "hidden": dict(time.hidden),
        "tokens_per_second": time.tokens_per_second,
        "mfu": time.mfu,
        "hfu": time.hfu,
        "traffic": [dataclasses.asdict(row) for row in report.traffic],
        "goodput": None
        if report.goodput is None
        else dataclasses.asdict(report.goodput) | {"share": report.goodput.share},
        "run": dataclasses.asdict(report.bill) | {"steps": report.num_steps},
        "usd_per_million_tokens": None if report.cost_per_token is None else report.cost_per_token * 1e6,
        "findings": [dataclasses.asdict(finding) for finding in report.findings],
    }
