"""The first thing to run on a machine with GPUs: do they compute what its CPU computes, how fast, in how much memory?

    python scripts/gpu_smoke.py --cluster configs/clusters/h100_roce.py [--part numbers|speed|kernels ...] [--rehearse]

numbers: small models of several runs on the GPUs in float32, compared with one CPU device (`prove --gpus`); where there
are several GPUs under each kind of layout that they can hold. speed: real sizes in bfloat16, beside what `plan` says of
the same run. kernels: cuDNN's attention and the project's own in bfloat16 beside float32, results, gradients and their
time. One JSON line a check; the exit code is 1 where one failed.

With --rehearse all of it is tiny and runs on the CPU, to try the script where there is no GPU.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RUNS = ("quickstart", "quickstart_moe", "gpt2_1b5", "llama3_8b", "deepseek_v3")
# One layout of each kind, with the number of devices that it takes at least.
KINDS = {
    "zero3": 2, "tensor_sequence": 4, "context_ring_zigzag": 4, "pipeline_1f1b": 4, "hsdp_tensor": 8,
    "pipeline_tensor_zero1": 8,
}  # fmt: skip
# Flags of a run of configs/runs/bench_gpu.py for each measured variant; {n} is the number of GPUs.
SPEED = {
    "rows of 4,096": (),
    "rows of 4,096, remat": ("--layout.remat=full",),
    "rows of 32,768": ("--config.model.max_length=32768", "--config.data.length=32768", "--config.global_batch={n}"),
}
TINY = (
    "--config.model.num_layers=2", "--config.model.embed=64", "--config.model.num_heads=4",
    "--config.model.num_kv_heads=2", "--config.model.head_dim=16", "--config.model.mlp=128", "--config.model.vocab=256",
    "--config.model.max_length=64", "--config.data.length=64",
)  # fmt: skip
STEPS, WARM = 14, 4  # steps of a timed run, and those at its beginning that do not count
# name -> (length, query heads, key heads, head size, window) of one row
ATTENTION = {
    "rows of 4,096": (4096, 32, 8, 64, None), "rows of 16,384": (16384, 32, 8, 128, None),
    "a window of 1,024": (8192, 16, 4, 128, 1024),
}  # fmt: skip
CLOSE = (
    8 * 2.0**-8
)  # of the largest entry: bfloat16 rounds to 2^-9, here weights, results and three products on the way
CALLS = 5  # of a kernel, of which the median counts


@dataclass(frozen=True)
class Machine:
    """What there is: the number of devices and their kind; `rehearsed` where CPU devices stand for GPUs."""

    number: int
    kind: str
    cluster: str
    rehearsed: bool

    @property
    def layout(self) -> str:
        """The layout of the runs on all devices."""
        return "single" if self.number == 1 else "zero3"


def call(*command: str) -> subprocess.CompletedProcess[str]:
    """A program of this repository, run to its end, its error stream to the user."""
    return subprocess.run([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def look(cluster: str, rehearsed: bool) -> tuple[Machine, dict[str, Any]]:
    """The machine, and what is to be on record of it; JAX is asked in a process of its own."""
    code = (
        "import jax, json, platform; d = jax.devices(); print(json.dumps(dict(kind=d[0].device_kind,"
        " platform=d[0].platform, number=len(d), jax=jax.__version__, python=platform.python_version(),"
        " memory_gb=((d[0].memory_stats() or {}).get('bytes_limit') or 0) / 1e9)))"
    )
    done = call("-c", code)
    if done.returncode != 0:
        sys.exit("jax does not start on this machine; what it says stands above")
    found = json.loads(done.stdout)
    if found["platform"] == "cpu" and not rehearsed:
        sys.exit(f"jax {found['jax']} finds no GPU here: is the cuda13 extra installed? --rehearse tries the script.")
    return Machine(found["number"], found["kind"], cluster, rehearsed), found


def numbers(machine: Machine) -> bool:
    """Every run's shrunk model on one device, and one model under each kind of layout that fits."""
    where = ["--devices", "1"] if machine.rehearsed else ["--devices", "1", "--gpus"]
    steps = ["--steps", "1"] if machine.rehearsed else []
    right = True
    for run in RUNS[:1] if machine.rehearsed else RUNS:
        done = call("-m", "meshtrain.prove", "--config", f"configs/runs/{run}.py", *where, *steps, layout("single"))
        right &= report("numbers", done.returncode == 0, run=run, layouts=["single"], text=done.stdout)
    fitting = [layout(name) for name, least in KINDS.items() if least <= machine.number and not machine.rehearsed]
    if fitting:
        done = call("-m", "meshtrain.prove", "--config", "configs/runs/quickstart.py", "--gpus", *fitting)
        right &= report("numbers", done.returncode == 0, run="quickstart", layouts=fitting, text=done.stdout)
    return right


def speed(machine: Machine) -> bool:
    """Each variant measured and planned, side by side."""
    right = True
    for name, flags in list(SPEED.items())[: 1 if machine.rehearsed else None]:
        records = train(machine, STEPS, *flags)
        planned = plan(machine, *flags)
        if not records:
            right = report("speed", False, variant=name)
            continue
        timed = records[WARM:]
        report(
            "speed", True, variant=name, seconds=statistics.median(record["seconds"] for record in timed),
            planned_seconds=planned.get("step_seconds"),
            tokens_per_s=statistics.median(record["tokens_per_s"] for record in timed),
            mfu=statistics.median(record.get("mfu", 0.0) for record in timed), planned_mfu=planned.get("mfu"),
            peak_gb=records[-1].get("peak_memory_gb"), planned_gb=planned.get("memory", {}).get("peak", 0) / 1e9,
        )  # fmt: skip
    return right


def kernels(machine: Machine) -> bool:
    """Attention of one row by each kernel in bfloat16: how far from float32, and the time of result and gradients.

    It is the last part, for only here does this process itself take the GPU.
    """
    import jax
    import jax.numpy as jnp

    from meshtrain.layout import single_placement
    from meshtrain.parallel.attention.kernel import self_attention
    from meshtrain.parallel.attention.mask import Mask

    def results(kernel: str, mask: Mask, *qkv: jax.Array) -> list[jax.Array]:
        places = jnp.arange(qkv[0].shape[1], dtype=jnp.int32)[None]

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = self_attention(q, k, v, places, jnp.ones_like(places), mask, kernel, single_placement())
            return jnp.sum(jnp.sin(out.astype(jnp.float32))), out

        (_, out), gradients = jax.value_and_grad(attend, argnums=(0, 1, 2), has_aux=True)(*qkv)
        return [out, *gradients]

    right = True
    for name, (length, heads, kv_heads, head_dim, window) in ATTENTION.items():
        length = length // 64 if machine.rehearsed else length
        mask = Mask(scale=head_dim**-0.5, window=window, packed=False)
        shapes = [(1, length, number, head_dim) for number in (heads, kv_heads, kv_heads)]
        keys = jax.random.split(jax.random.key(0), 3)
        rounded = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, shapes, strict=True)]
        with jax.default_matmul_precision("highest"):
            exact = jax.jit(results, static_argnums=(0, 1))("xla", mask, *(x.astype(jnp.float32) for x in rounded))
        for kernel in ("xla",) if machine.rehearsed else ("xla", "cudnn"):
            compiled = jax.jit(results, static_argnums=(0, 1)).lower(kernel, mask, *rounded).compile()
            found, seconds = jax.block_until_ready(compiled(*rounded)), []
            for _ in range(CALLS):
                begun = time.perf_counter()
                jax.block_until_ready(compiled(*rounded))
                seconds.append(time.perf_counter() - begun)
            off = [float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b))) for a, b in zip(found, exact, strict=True)]
            right &= report(
                "kernels", max(off) <= CLOSE, row=name, kernel=kernel, off=off, seconds=statistics.median(seconds)
            )
    return right


def train(machine: Machine, steps: int, *flags: str) -> list[dict[str, Any]]:
    """The records of a run's steps; none where it failed, and then its words go to the error stream."""
    with tempfile.TemporaryDirectory() as folder:
        done = call("-m", "meshtrain.train", *run_flags(machine, *flags), f"--config.workdir={folder}/run",
                    f"--config.steps={steps}", *(["--config.cpu_devices=1"] if machine.rehearsed else []))  # fmt: skip
        if done.returncode != 0:
            print(done.stdout, file=sys.stderr)
            return []
        lines = Path(folder, "run", "metrics.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if "loss" in record]


def plan(machine: Machine, *flags: str) -> dict[str, Any]:
    """What `plan` says of the same run on as many GPUs of the cluster."""
    where = ["--cluster", machine.cluster, "--gpus", str(machine.number), "--json"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "meshtrain.plan", *run_flags(machine, *flags), *where]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def run_flags(machine: Machine, *flags: str) -> list[str]:
    """The run's file, the layout of the machine, its batch, and the variant's own flags behind them."""
    mine = [flag.format(n=machine.number) for flag in flags]
    tiny = TINY if machine.rehearsed else ()
    mine = [flag for flag in mine if not machine.rehearsed or "length" not in flag]
    return ["--config", "configs/runs/bench_gpu.py", "--layout", layout(machine.layout),
            f"--config.global_batch={8 * machine.number}", *tiny, *mine]  # fmt: skip


def layout(name: str) -> str:
    return f"configs/layouts/{name}.py"


def report(part: str, right: bool, **found: Any) -> bool:
    """One JSON line; whether it was right."""
    print(json.dumps({"part": part, "ok": right} | found), flush=True)
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"numbers": numbers, "speed": speed, "kernels": kernels}
    parser.add_argument("--part", action="append", choices=list(parts), help="default: all of them")
    parser.add_argument("--cluster", default="configs/clusters/h100_roce.py", help="the GPUs, for what plan says")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on the CPU: tries the script itself")
    options = parser.parse_args()
    if options.rehearse:
        os.environ["JAX_PLATFORMS"] = "cpu"
    machine, about = look(str(Path(options.cluster).resolve()), options.rehearse)
    report("machine", True, **about)
    results = [
        parts[part](machine) for part in parts if part in (options.part or parts)
    ]  # one that fails does not hide the others
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
