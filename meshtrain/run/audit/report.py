"""`AuditReport`: a run's step compiled for a cluster, as data: memory, ledger, overlap, FLOPs, large copies."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshtrain.audit.collectives import Found, read_collectives
from meshtrain.audit.compile import CPU_CANNOT_TELL, compile_step
from meshtrain.audit.copies import Copy, large_copies
from meshtrain.audit.hlo import parse_module
from meshtrain.audit.ledger import Ledger, at_even_load, make_ledger
from meshtrain.audit.overlap import module_flops
from meshtrain.cost.cluster import Cluster
from meshtrain.cost.memory import predict_memory
from meshtrain.cost.traffic import predict_traffic
from meshtrain.layout import Layout, place_abstract
from meshtrain.layout.roles import words
from meshtrain.model.flops import attention_flops_per_token, model_flops_per_token
from meshtrain.run.config import RunConfig
from meshtrain.run.startup import step_config

LARGE = 0.005  # of the device's memory: a copy worth a line
ATTENTION_CALL = "__cudnn$fmha"  # attention inside a library, whose products are not in the program's text


@dataclass(frozen=True)
class AuditReport:
    """Bytes of one device. peak: what the compiler asks for; predicted: the plan's. flops: products of the program a
    step and device; model_flops: those of the model (convention of MFU), attention left out where a library has it.
    cannot_tell: what this backend does not show. seconds: of compilation and reading."""

    name: str
    words: str
    mesh: dict[str, int]
    num_devices: int
    gpu: str
    peak: int
    state: int
    temporary: int
    predicted: int | None
    ledger: Ledger
    found: tuple[Found, ...]
    flops: float
    model_flops: float
    library_attention: bool
    copies: tuple[Copy, ...]
    cannot_tell: tuple[str, ...]
    seconds: float


def make_audit_report(
    config: RunConfig, layout: Mapping[str, Any], name: str, cluster: Cluster, num_devices: int, backend: str = "gpu"
) -> AuditReport:
    """Compiles and reads; InputError for what cannot run or cannot be compiled for. backend: "gpu" or "cpu"."""
    started = time.monotonic()
    declared, step = Layout.parse(layout, name), step_config(config)
    place = place_abstract(declared, num_devices)
    sizes = dict(global_batch=config.global_batch, length=config.data.length, packed=config.data.packed)
    planned = predict_traffic(step, place, **sizes)  # type: ignore[arg-type]
    on_cpu = backend == "cpu"
    compiled = compile_step(
        step, declared, num_devices, **sizes,  # type: ignore[arg-type]
        gpu=None if on_cpu else short_name(cluster.gpu), per_node=cluster.gpus_per_node,
        options={} if on_cpu else options(cluster.xla_flags),
    )  # fmt: skip
    text, memory = compiled.as_text(), compiled.memory_analysis()
    assert text is not None
    assert memory is not None
    module = parse_module(text)
    found = at_even_load(read_collectives(module, place.axis_sizes, declared.pipeline is not None), planned)
    tokens = config.global_batch * config.data.length / num_devices
    library = ATTENTION_CALL in text
    model_flops = model_flops_per_token(config.model, config.data.length)
    if library:
        model_flops -= 3 * attention_flops_per_token(config.model, config.data.length)
    arguments, aliased = memory.argument_size_in_bytes, memory.alias_size_in_bytes
    return AuditReport(
        name=name, words=words(place), mesh=place.axis_sizes, num_devices=num_devices,
        gpu="virtual CPU devices" if on_cpu else cluster.gpu,
        peak=arguments + memory.output_size_in_bytes - aliased + memory.temp_size_in_bytes,
        state=arguments, temporary=memory.temp_size_in_bytes,
        predicted=predict_memory(step, place, config.global_batch, config.data.length, packed=config.data.packed).peak,
        ledger=make_ledger(planned, found), found=tuple(found), flops=module_flops(module),
        model_flops=model_flops * tokens, library_attention=library,
        copies=tuple(large_copies(module, int(LARGE * cluster.memory.value))),
        cannot_tell=CPU_CANNOT_TELL if on_cpu else (), seconds=time.monotonic() - started,
    )  # fmt: skip


def short_name(gpu: str) -> str:
    """The compiler's name of a cluster's GPU: "H100 SXM" -> "h100"."""
    return gpu.split()[0].lower()


def options(flags: tuple[str, ...]) -> dict[str, bool | str]:
    """XLA_FLAGS as compiler options: "--xla_name=true" -> {"xla_name": True}."""
    pairs = (flag.removeprefix("--").partition("=") for flag in flags)
    return {key: value == "true" if value in ("true", "false", "") else value for key, _, value in pairs}


def as_json(report: AuditReport) -> dict[str, Any]:
    """The report as plain JSON values."""
    values = {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in ("ledger", "found", "copies")
    }
    ledger = report.ledger
    return values | {
        "planned_wire_bytes": ledger.planned,
        "found_wire_bytes": ledger.found,
        "overlapped_wire_bytes": ledger.overlapped,
        "ledger": [dataclasses.asdict(entry) for entry in ledger.entries],
        "copies": [dataclasses.asdict(copy) for copy in report.copies],
    }
