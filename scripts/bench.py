"""The benchmark: a Llama decoder of 56e6 parameters, 4,096 tokens a step, one JSON line per variant.

    python scripts/bench.py [--variant NAME ...] [--steps 13] [--last 10] [--cache FOLDER]

Each variant runs `python -m meshtrain.train` as a child process, as a user would, on the CPU. The clock is outside: a
step counts when its line arrives, after its loss was read. `first_step_s` is from the start of the process to the first
such line; without `--cache` the compilation cache is empty.
"""

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOKENS_PER_STEP = 8 * 512
VARIANTS = {
    "1dev-fp32": (1, "single", []),
    "1dev-bf16": (1, "single", ["--config.precision.compute=bfloat16"]),
    "8dev-fsdp8-fp32": (8, "zero3", []),
    "8dev-dp2fsdp2tp2-fp32": (8, "hsdp_tensor", []),
}


def measure(variant: str, steps: int, last: int, cache: Path | None) -> dict[str, object]:
    """Run one variant and read the clock at each finished step."""
    devices, layout, extra = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "meshtrain.train", "--config", str(ROOT / "configs/runs/bench.py"),
            "--layout", str(ROOT / f"configs/layouts/{layout}.py"), f"--config.workdir={folder}/run",
            f"--config.steps={steps}", f"--config.cpu_devices={devices}",
            f"--config.compilation_cache={cache.resolve() if cache else folder + '/cache'}", *extra,
        ]  # fmt: skip
        started = time.monotonic()
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        assert child.stdout is not None
        moments, log = [], []
        for line in child.stdout:
            log.append(line)
            if re.match(r"step +[\d,]+", line):
                moments.append(time.monotonic() - started)
        if child.wait() != 0 or len(moments) != steps:
            sys.exit("".join(log) + f"\n{variant}: exit code {child.returncode} after {len(moments)} of {steps} steps")
    gaps = [after - before for before, after in itertools.pairwise(moments)][-last:]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    median = statistics.median(gaps)
    return {
        "peer": "meshtrain", "variant": variant, "tokens_per_s": round(TOKENS_PER_STEP / median, 1),
        "first_step_s": round(moments[0], 1), "step_s_median": round(median, 3), "peak_rss_mb": round(peak),
        "steps": steps, "step_s_range": [round(min(gaps), 2), round(max(gaps), 2)],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="default: all, one after the other")
    parser.add_argument("--steps", type=int, default=13)
    parser.add_argument("--last", type=int, default=10, help="median over this many last steps")
    parser.add_argument(
        "--cache", type=Path, help="a folder for the compilation cache (default: a new one, so a cold start)"
    )
    options = parser.parse_args()
    variants = options.variant or list(VARIANTS)
    if len(variants) == 1:
        print(json.dumps(measure(variants[0], options.steps, options.last, options.cache)), flush=True)
        return
    for variant in variants:  # a process each: the peak of memory is the kernel's figure for one child
        subprocess.run([sys.executable, __file__, "--variant", variant, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
