"""How long a start takes by the number of local processes: from the command to the first step, and to the end.

    python scripts/start_bench.py [--processes 1 2 4 8 16]

`python -m meshtrain.launch` trains a tiny model (data parallel, one CPU device a process) for three steps and saves it,
first with an empty cache of compiled programs and then with a full one. One JSON line per count. All processes share
this machine's cores, so this is what a rehearsal costs; on hosts of their own the imports and the compilation, most of
it, take place side by side.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = 3
MODEL = {
    "num_layers": 2, "embed": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "mlp": 128, "vocab": 256,
    "max_length": 64,
}  # fmt: skip


def start(processes: int, folder: Path, workdir: str) -> tuple[float, float, float]:
    """Seconds to the meeting of all, to the first step's line and to the end, of a run in `folder`/`workdir`."""
    run = {
        "model": MODEL, "data": {"kind": "synthetic", "length": 64}, "optimizer": {"learning_rate": 1e-3},
        "global_batch": 16, "steps": STEPS, "workdir": str(folder / workdir), "tensorboard": False, "log_every": 1,
        "layout": str(ROOT / "configs/layouts/ddp.py"), "compilation_cache": str(folder / "cache"),
    }  # fmt: skip
    (folder / "config.py").write_text(f"def get_config():\n    return {run!r}\n")
    command = [
        sys.executable, "-m", "meshtrain.launch", "--processes", str(processes), "--devices", "1", "--",
        "--config", str(folder / "config.py"),
    ]  # fmt: skip
    began, met, first, log = time.monotonic(), 0.0, 0.0, []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            log.append(line)
            now = time.monotonic() - began
            if line.startswith("[0] meshtrain "):  # all have met, and each has its devices
                met = now
            elif line.startswith("[0] step") and not first:
                first = now
    if child.returncode or not any(f"done: step {STEPS} " in line for line in log):
        sys.exit("".join(log) + f"\nexit code {child.returncode}")
    return met, first, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    for processes in parser.parse_args().processes:
        with tempfile.TemporaryDirectory() as folder:
            cold, warm = start(processes, Path(folder), "cold"), start(processes, Path(folder), "warm")
        names = ("all have met s", "first step s", "end s")
        print(json.dumps({
            "processes": processes,
            "cold": {name: round(value, 1) for name, value in zip(names, cold, strict=True)},
            "warm": {name: round(value, 1) for name, value in zip(names, warm, strict=True)},
        }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
