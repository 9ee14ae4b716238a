"""The steps whose memory is predicted and compiled: models small and large, every way to cut them.

`python scripts/refresh_memory.py` compiles them for H100s, without a GPU, and writes what the compiler says.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshtrain.layout import Layout
from meshtrain.model import ModelConfig, MoEConfig
from meshtrain.run import config_file, schema
from meshtrain.step import OptimizerConfig, Precision, StepConfig

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "goldens" / "memory.json"


@dataclass(frozen=True)
class Case:
    """A step on `gpus` devices: a model file, the global batch, the length, the layout as a file gives it."""

    model: str
    gpus: int
    batch: int
    length: int
    layout: dict[str, Any]
    compute: str = "bfloat16"
    packed: bool = False
    optimizer: str = "adamw"

    def config(self) -> StepConfig:
        """What is computed."""
        return StepConfig(model_of(self.model, self.length), OptimizerConfig(self.optimizer), Precision(self.compute))


@functools.cache
def model_of(name: str, length: int) -> ModelConfig:
    """The model of a file under configs/models, long enough for `length`, or `small`: 1.5e9 parameters; `small_moe`:
    as many for each token, and 32 experts."""
    if name in ("small", "small_moe"):
        small = ModelConfig(
            num_layers=16, embed=2048, num_heads=32, num_kv_heads=8, head_dim=64, mlp=8192, vocab=128256,
            max_length=length,
        )  # fmt: skip
        return small if name == "small" else replace(small, moe=MoEConfig(num_experts=32, top_k=4, mlp=1024))
    values = config_file.read(str(ROOT / "configs" / "models" / f"{name}.py"), "model").values
    model = schema.build(ModelConfig, values, "model")
    return replace(model, max_length=max(model.max_length, length))


DATA = dict(batch="data")
TENSOR = dict(heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
ZERO: dict[int, dict[str, Any]] = {
    0: {}, 1: dict(optimizer=dict(embed="data")), 2: dict(grads=dict(embed="data")), 3: dict(params=dict(embed="data")),
}  # fmt: skip


def data(number: int, zero: int = 0, **more: Any) -> dict[str, Any]:
    """Data parallelism with a ZeRO stage."""
    return dict(mesh=dict(data=number), rules=DATA, **ZERO[zero], **more)


def tensor(parts: int, number: int, zero: int = 0, stream: bool = True, **more: Any) -> dict[str, Any]:
    """Tensor parallelism in `parts`, with sequence parallelism or without."""
    rows = dict(activations=dict(stream="tensor")) if stream else {}
    return dict(mesh=dict(data=parts, tensor=number), rules=dict(**DATA, **TENSOR), **rows, **ZERO[zero], **more)


def context(parts: int, number: int, attention: str, order: str = "contiguous", **more: Any) -> dict[str, Any]:
    """Context parallelism."""
    return dict(
        mesh=dict(data=parts, context=number), rules=dict(**DATA, length="context"),
        activations=dict(stream="context"), attention=attention, order=order, **more,
    )  # fmt: skip


def stages(parts: int, number: int, schedule: str, num: int, tensor: int = 1, **more: Any) -> dict[str, Any]:
    """A pipeline, with tensor and sequence parallelism inside the stages where `tensor` is above 1."""
    pipeline = dict(schedule=schedule, microbatches=num, **more.pop("pipeline", {}))
    if tensor == 1:
        return dict(mesh=dict(data=parts, stage=number), rules=dict(**DATA, layers="stage"), pipeline=pipeline, **more)
    return dict(
        mesh=dict(data=parts, stage=number, tensor=tensor), rules=dict(**DATA, layers="stage", **TENSOR),
        activations=dict(stream="tensor"), pipeline=pipeline, **more,
    )  # fmt: skip


def _cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for zero in range(4):
        found[f"small zero{zero}"] = Case("small", 8, 16, 4096, data(8, zero))
        found[f"gpt2 zero{zero} accumulate 2"] = Case("gpt2_1b5", 8, 64, 1024, data(8, zero, accumulate=2))
    for zero in (1, 2, 3):
        found[f"8b zero{zero} full"] = Case("llama3_8b", 16, 64, 8192, data(16, zero, remat="full"))
        found[f"8b zero{zero} names accumulate 4"] = Case(
            "llama3_8b", 16, 64, 8192, data(16, zero, remat="names", accumulate=4)
        )
    found["small zero3 accumulate 2"] = Case("small", 8, 16, 4096, data(8, 3, accumulate=2))
    found["small zero3 packed"] = Case("small", 8, 16, 4096, data(8, 3), packed=True)
    found["small zero3 float32"] = Case("small", 8, 8, 4096, data(8, 3), compute="float32")
    for remat in ("dots", "names", "full"):
        found[f"small zero3 {remat}"] = Case("small", 8, 16, 4096, data(8, 3, remat=remat))
    for remat in ("none", "dots", "names", "full"):
        found[f"8b tensor 2 sequence zero3 {remat}"] = Case("llama3_8b", 16, 16, 8192, tensor(8, 2, 3, remat=remat))
        found[f"8b tensor 4 zero1 {remat}"] = Case("llama3_8b", 16, 8, 8192, tensor(4, 4, 1, False, remat=remat))
        found[f"8b tensor 8 sequence {remat}"] = Case("llama3_8b", 16, 8, 8192, tensor(2, 8, remat=remat))
    found["small tensor 4"] = Case("small", 8, 16, 4096, tensor(2, 4, stream=False))
    found["small tensor 4 sequence"] = Case("small", 8, 16, 4096, tensor(2, 4))
    found["small tensor 4 sequence zero3"] = Case("small", 8, 16, 4096, tensor(2, 4, 3))
    found["qwen3 8b tensor 4 sequence zero3 names"] = Case("qwen3_8b", 16, 8, 8192, tensor(4, 4, 3, remat="names"))
    for remat in ("names", "full"):
        found[f"70b tensor 8 sequence zero3 {remat}"] = Case("llama3_70b", 256, 64, 8192, tensor(32, 8, 3, remat=remat))
    found["405b tensor 8 sequence zero3 full"] = Case(
        "llama3_405b", 16384, 2048, 8192, tensor(2048, 8, 3, remat="full")
    )
    found["405b on 1,024, accumulate 16"] = Case(
        "llama3_405b", 1024, 2048, 8192, tensor(128, 8, 3, remat="full", accumulate=16)
    )
    hsdp = dict(mesh=dict(replica=2, shard=4), rules=dict(batch=("replica", "shard")), params=dict(embed="shard"))
    found["small in replicas of 4 shards, names"] = Case("small", 8, 16, 4096, dict(**hsdp, remat="names"))
    found["small tensor 2 zero2 dots"] = Case("small", 8, 16, 4096, tensor(4, 2, 2, False, remat="dots"))
    found["small zero2 accumulate 2 full"] = Case("small", 8, 32, 4096, data(8, 2, accumulate=2, remat="full"))
    found["qwen3 8b zero3 full"] = Case("qwen3_8b", 16, 16, 8192, data(16, 3, remat="full"))
    found["70b tensor 8 zero3 dots accumulate 2"] = Case(
        "llama3_70b", 256, 64, 8192, tensor(32, 8, 3, remat="dots", accumulate=2)
    )
    found |= _context_cases() | _pipeline_cases() | _expert_cases() | _muon_cases()
    return found


def _context_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for attention, order in (
        ("ring", "zigzag"),
        ("ring", "contiguous"),
        ("gather", "zigzag"),
        ("ulysses", "contiguous"),
    ):
        name = f"context 4 {attention} {order}"
        found[f"small {name}"] = Case("small", 8, 2, 32768, context(2, 4, attention, order))
        found[f"8b {name} zero3 names"] = Case(
            "llama3_8b",
            8,
            2,
            65536,
            context(2, 4, attention, order, params=dict(embed=("data", "context")), remat="names"),
        )
    found["8b context 4 ring, tensor 2, zero3 names"] = Case(
        "llama3_8b", 16, 4, 65536,
        dict(
            mesh=dict(data=2, context=4, tensor=2), rules=dict(**DATA, length="context", **TENSOR),
            activations=dict(stream=("context", "tensor")), params=dict(embed=("data", "context")),
            attention="ring", order="zigzag", remat="names",
        ),
    )  # fmt: skip
    return found


def _pipeline_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    zero1: dict[str, Any] = dict(optimizer=dict(embed="data"))
    for schedule in ("1f1b", "gpipe", "interleaved", "zb_h1"):
        more: dict[str, Any] = dict(pipeline=dict(repeats=2)) if schedule == "interleaved" else {}
        found[f"small {schedule} 4 zero1"] = Case("small", 8, 32, 4096, stages(2, 4, schedule, 8, **zero1, **more))
        if schedule != "zb_h1":  # (whose tape would not fit)
            found[f"8b {schedule} 4, tensor 2, zero1 names"] = Case(
                "llama3_8b", 16, 32, 8192, stages(2, 4, schedule, 8, 2, remat="names", **zero1, **more)
            )
    found["small 1f1b 4"] = Case("small", 8, 16, 4096, stages(2, 4, "1f1b", 4))
    found["8b 1f1b 4 zero3, gathered in each pass, full"] = Case(
        "llama3_8b", 16, 32, 8192,
        stages(4, 4, "1f1b", 8, params=dict(embed="data"), pipeline=dict(gather="pass"), remat="full"),
    )  # fmt: skip
    found["70b 1f1b 8, tensor 8, zero1 full"] = Case(
        "llama3_70b", 256, 128, 8192, stages(4, 8, "1f1b", 16, 8, remat="full", **zero1)
    )
    for schedule, remat in (("1f1b", "none"), ("gpipe", "dots"), ("interleaved", "full"), ("zb_h1", "names")):
        pipeline = dict(keep="residuals", repeats=2 if schedule == "interleaved" else 1)
        more = dict(pipeline=pipeline, remat=remat, **zero1)
        found[f"small {schedule} 4, tensor 2, residuals {remat}"] = Case(
            "small", 16, 16, 4096, stages(2, 4, schedule, 8, 2, **more)
        )
    found["70b 1f1b 8, tensor 8, zero1, residuals dots"] = Case(
        "llama3_70b", 256, 64, 8192, stages(4, 8, "1f1b", 16, 8, remat="dots", pipeline=dict(keep="residuals"), **zero1)
    )
    for name, gpus, batch, length in (("8k", 16384, 2048, 8192), ("128k", 16384, 128, 131072)):
        values = config_file.read(str(ROOT / "configs" / "layouts" / f"llama3_405b_{name}.py"), "layout").values
        found[f"405b as published, {name}"] = Case("llama3_405b", gpus, batch, length, values)
    return found


def experts(parts: int, number: int, capacity: float | None = None, **more: Any) -> dict[str, Any]:
    """Experts over an axis of their own, which cuts the batch too; ZeRO-1."""
    both = ("data", "expert")
    return dict(
        mesh=dict(data=parts, expert=number), rules=dict(batch=both, expert="expert"),
        optimizer=dict(embed=both, expert_embed="data"), experts=dispatch(capacity), **more,
    )  # fmt: skip


def dispatch(capacity: float | None) -> dict[str, Any]:
    """The section of a layout: with a capacity, or dropless."""
    return dict(dispatch="capacity", capacity_factor=capacity) if capacity else dict(dispatch="dropless")


def folded(number: int, zero: int, capacity: float | None = None, **more: Any) -> dict[str, Any]:
    """Experts over the data axis, all other weights with a ZeRO stage."""
    stored = {kind: dict(rows, expert_embed=None) for kind, rows in ZERO[zero].items()}
    rules = dict(batch="data", expert="data")
    return dict(mesh=dict(data=number), rules=rules, experts=dispatch(capacity), **stored, **more)


def with_tensor(parts: int, number: int, capacity: float | None = None, **more: Any) -> dict[str, Any]:
    """Experts over (data, tensor), attention with tensor and sequence parallelism, ZeRO-1."""
    rules = dict(TENSOR, **DATA, expert=("data", "tensor"), expert_mlp=None)
    return dict(
        mesh=dict(data=parts, tensor=number), rules=rules, activations=dict(stream="tensor"),
        optimizer=dict(embed="data", expert_embed=None), experts=dispatch(capacity), **more,
    )  # fmt: skip


def _expert_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for name, capacity in (("dropless", None), ("capacity", 1.25)):
        found[f"tiny_moe expert 4 {name}"] = Case("tiny_moe", 8, 64, 512, experts(2, 4, capacity))
        found[f"small_moe expert 4 {name}"] = Case("small_moe", 8, 8, 4096, experts(2, 4, capacity))
        found[f"small_moe on data, zero3 {name} names"] = Case(
            "small_moe", 8, 8, 4096, folded(8, 3, capacity, remat="names")
        )
        found[f"small_moe on data and tensor {name} full"] = Case(
            "small_moe", 8, 8, 4096, with_tensor(4, 2, capacity, remat="full")
        )
        stages = dict(pipeline=dict(schedule="1f1b", microbatches=8))
        piped = experts(2, 2, capacity, **stages)
        piped["mesh"] = dict(stage=2, **piped["mesh"])
        piped["rules"] = dict(piped["rules"], layers="stage")
        found[f"small_moe 1f1b 2, expert 2 {name}"] = Case("small_moe", 8, 32, 4096, piped)
        found[f"mixtral expert 8 {name} full"] = Case(
            "mixtral_8x7b", 64, 64, 4096, experts(8, 8, capacity, remat="full")
        )
    found["small_moe zero2"] = Case("small_moe", 8, 8, 4096, data(8, 2))
    found["small_moe expert 8 capacity dots accumulate 2"] = Case(
        "small_moe", 8, 16, 4096, experts(1, 8, 1.25, remat="dots", accumulate=2)
    )
    found["qwen3 30b expert 8 capacity full"] = Case("qwen3_30b_a3b", 64, 64, 4096, experts(8, 8, 1.25, remat="full"))
    return found


def _muon_cases() -> dict[str, Case]:
    """Muon, whose whole matrices are the largest where nothing is cut and little is kept."""
    found: dict[str, Case] = {}
    for zero in range(4):
        found[f"small muon zero{zero} full"] = Case("small", 8, 16, 2048, data(8, zero, remat="full"))
    found["8b muon zero1 full"] = Case("llama3_8b", 16, 64, 8192, data(16, 1, remat="full"))
    found["8b muon tensor 8 sequence full"] = Case("llama3_8b", 16, 8, 8192, tensor(2, 8, remat="full"))
    found["8b muon tensor 8 short rows"] = Case("llama3_8b", 16, 8, 1024, tensor(2, 8, remat="full"))
    found["8b muon tensor 4 sequence zero3 names"] = Case("llama3_8b", 16, 8, 8192, tensor(4, 4, 3, remat="names"))
    zero1: dict[str, Any] = dict(optimizer=dict(embed="data"))
    found["small muon 1f1b 4 zero1"] = Case("small", 8, 32, 4096, stages(2, 4, "1f1b", 8, **zero1))
    found["small_moe muon expert 4 capacity full"] = Case("small_moe", 8, 8, 4096, experts(2, 4, 1.25, remat="full"))
    return {name: replace(case, optimizer="muon") for name, case in found.items()}


CASES = _cases()


def layout_of(case: Case) -> Layout:
    """The layout of a case."""
    return Layout.parse(case.layout, "case")
