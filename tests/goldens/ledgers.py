"""The audited traffic of every layout file, as golden text: a small model's step, compiled for 16 H100s without a GPU.

Whatever is not as planned has its reason here, by the words of its line; a line without one fails the test. Run as a
program (`python -m tests.goldens.ledgers FOLDER [LAYOUT ...]`) it writes the texts: the compiler is chosen before any
device is touched. Never the program's own text: that changes with every version of the compiler. Layouts of published
runs keep their axes and schedule here, on the fewest devices that leave each axis above 1; AT_SIZE, as they were run.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "audit"
LAYOUTS = sorted((ROOT / "configs" / "layouts").glob("*.py"))
NUM_DEVICES, GLOBAL_BATCH, LENGTH = 16, 256, 512

# Layout of a published run -> what is changed for 16 devices: sizes of the mesh, and layers or microbatches.
SHRUNK: dict[str, dict[str, Any]] = {
    "deepseek_v3": dict(mesh=dict(data=-1, stage=2, node=2, gpu=2), microbatches=4),
    "llama3_405b_8k": dict(mesh=dict(data=-1, stage=2, tensor=2), layers=14),
    "llama3_405b_128k": dict(mesh=dict(data=-1, stage=2, context=2, tensor=2), layers=14),
}

# Layouts that are compiled once more where all of a layer is done again: what the second pass sends.
AGAIN, SUFFIX = ("context_ring_zigzag", "context_ulysses", "expert", "pipeline_residuals"), "_remat_full"

# Published runs at their own size: layout -> (run, GPUs). 2 to 4 minutes and 2 GB each; a test reads them, and holds
# their plan against the plan of today.
AT_SIZE = {"llama3_405b_8k": ("llama3_405b", 16384), "llama3_405b_128k": ("llama3_405b_128k", 16384)}

# Layouts whose ledger stands here also for Muon, which needs whole matrices (layout/whole.py).
MUON = ("tensor_zero3", "zero3")

# Words of a line -> why it is not as planned.
REASONS = {
    "one all-reduce in place of a reduce-scatter and a sum of the parts": (
        "the sum of a table's parts is taken over several groups of axes at once, and cut afterwards"
    ),
    "an all-reduce in place of a reduce-scatter": (
        "what is joined once a step or used side by side is summed whole, and cut afterwards"
    ),
}


def names() -> list[str]:
    """All layout files but that of one device, and those of AGAIN."""
    return [*(path.stem for path in LAYOUTS if path.stem != "single"), *(name + SUFFIX for name in AGAIN)]


def case(name: str) -> tuple[Any, Any]:
    """(StepConfig, Layout) that a layout is compiled with."""
    from meshtrain.layout import Layout
    from meshtrain.model import ModelConfig, MoEConfig
    from meshtrain.run import config_file
    from meshtrain.step import Precision, StepConfig

    stem = name.removesuffix(SUFFIX)
    values = config_file.read(str(ROOT / "configs" / "layouts" / f"{stem}.py"), "layout").values
    values |= dict(remat="full") if name != stem else {}
    changes = SHRUNK.get(stem, {})
    values["mesh"] = changes.get("mesh", values["mesh"])
    if "microbatches" in changes:
        values["pipeline"] |= dict(microbatches=changes["microbatches"], layers=None)
    model = ModelConfig(
        num_layers=changes.get("layers", 4), embed=256, num_heads=16, num_kv_heads=8, head_dim=32, mlp=512, vocab=2048,
        max_length=LENGTH,
    )  # fmt: skip
    if stem == "deepseek_v3":
        model = _deepseek()
    elif "expert" in values.get("rules", {}):
        moe = MoEConfig(num_experts=32, top_k=2, mlp=256, balance_loss=0.01, z_loss=0.001)
        model = replace(model, moe=moe)
    return StepConfig(model, precision=Precision("bfloat16")), Layout.parse(values, stem)


def _deepseek() -> Any:
    """DeepSeek-V3, small: latents, groups, a bias, a shared expert, first dense layers."""
    from meshtrain.model import ModelConfig
    from meshtrain.run import config_file, schema

    values = config_file.read(str(ROOT / "configs" / "models" / "deepseek_v3.py"), "model").values
    values |= dict(
        num_layers=6, embed=256, num_heads=16, num_kv_heads=16, head_dim=48, mlp=512, vocab=2048, max_length=LENGTH,
        rope_scaling=None,
    )  # fmt: skip
    values["latent"] |= dict(query_rank=96, kv_rank=64, nope_dim=32, rope_dim=16, value_dim=32)
    values["moe"] |= dict(num_experts=32, top_k=4, mlp=128, first_dense=2, num_groups=4, top_groups=2)
    return schema.build(ModelConfig, values, "model")


def ledger_text(name: str, optimizer: str = "adamw") -> str:
    """The golden of a layout: totals, then every line of the ledger."""
    from meshtrain.audit import compile_step
    from meshtrain.audit.collectives import read_collectives
    from meshtrain.audit.hlo import parse_module
    from meshtrain.audit.ledger import at_even_load, make_ledger
    from meshtrain.cost.traffic import predict_traffic
    from meshtrain.layout import place_abstract
    from meshtrain.step import OptimizerConfig

    step, layout = case(name)
    step = replace(step, optimizer=OptimizerConfig(optimizer))
    place = place_abstract(layout, NUM_DEVICES)
    compiled = compile_step(
        step, layout, NUM_DEVICES, global_batch=GLOBAL_BATCH, length=LENGTH,
        options={"xla_backend_optimization_level": "0"},
    )  # fmt: skip
    text = compiled.as_text()
    assert text is not None
    found = read_collectives(parse_module(text), place.axis_sizes, layout.pipeline is not None)
    planned = predict_traffic(step, place, global_batch=GLOBAL_BATCH, length=LENGTH)
    return "\n".join(_lines(name, make_ledger(planned, at_even_load(found, planned))))


def at_size_text(name: str) -> str:
    """The golden of a published run at its own size: the ledger of its audit, and the peak of memory."""
    from meshtrain.layout.words import size_text
    from meshtrain.run.audit import make_audit_report
    from meshtrain.run.cluster_file import read_cluster

    config, layout, num_devices = at_size(name)
    cluster = read_cluster(str(ROOT / "configs" / "clusters" / "h100_roce.py"))
    report = make_audit_report(config, layout, name, cluster, num_devices)
    assert report.predicted is not None
    return "\n".join([
        *_lines(name, report.ledger),
        f"{num_devices:,} GPUs; peak {size_text(report.peak)}, planned {size_text(report.predicted)};"
        f" {report.ledger.overlapped / report.ledger.found:.0%} of the bytes beside compute",
    ])  # fmt: skip


def at_size(name: str) -> tuple[Any, Any, int]:
    """(RunConfig, values of the layout, GPUs) of a published run."""
    from meshtrain.run import config_file, schema
    from meshtrain.run.config import RunConfig

    run, num_devices = AT_SIZE[name]
    values = config_file.read(str(ROOT / "configs" / "runs" / f"{run}.py"), "config").values
    layout = config_file.read(str(ROOT / "configs" / "layouts" / f"{name}.py"), "layout").values
    return schema.build(RunConfig, values, "config"), layout, num_devices


def _lines(name: str, ledger: Any) -> Iterator[str]:
    ratio = ledger.found / ledger.planned
    yield f"{name}: planned {ledger.planned:,.0f} bytes, found {ledger.found:,.0f} ({ratio:.4f})"
    for one in sorted(ledger.entries, key=lambda e: (e.status, e.phase, e.kind, e.axes, e.why, e.found)):
        line = (
            f"{one.status:10} {one.phase:8} {one.kind:14} {' x '.join(one.axes):20} {one.dim:8} x {one.times:<5}"
            f" {one.planned:>14,.0f} {one.found:>14,.0f}  {one.why}"
        )
        yield line + (f"; {one.note}" if one.note else "")
        if one.status != "expected":
            yield f"{'':11}reason: {reason(one.note or one.why)}"


def reason(words: str) -> str:
    """Why a line is not as planned; "NONE" where nobody has said so yet."""
    return next((text for part, text in REASONS.items() if part in words), "NONE")


def write(folder: Path, wanted: Sequence[str] = ()) -> None:
    """Writes the goldens of these layouts (default all), in folders `muon` and `at_size` those of Muon and of published
    runs."""
    for name in names():
        if not wanted or name in wanted:
            (folder / f"{name}.txt").write_text(ledger_text(name) + "\n")
            print(name, flush=True)
    for name in MUON:
        if not wanted or f"muon/{name}" in wanted:
            (folder / "muon").mkdir(exist_ok=True)
            (folder / "muon" / f"{name}.txt").write_text(ledger_text(name, "muon") + "\n")
            print(f"muon/{name}", flush=True)
    for name in AT_SIZE:
        if not wanted or f"at_size/{name}" in wanted:
            (folder / "at_size").mkdir(exist_ok=True)
            (folder / "at_size" / f"{name}.txt").write_text(at_size_text(name) + "\n")
            print(f"at_size/{name}", flush=True)


if __name__ == "__main__":
    from meshtrain.run.compiler import compile_without_gpus

    compile_without_gpus()
    write(Path(sys.argv[1]), sys.argv[2:])
