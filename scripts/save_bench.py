"""What saves cost training, measured: the benchmark with a save every so many steps, against its own quiet steps.

    python scripts/save_bench.py [--every 16] [--saves 3] [--layout single --devices 1]

One run of `python -m meshtrain.train`, as a user would start it, with the clock outside: a step counts when its line
arrives. A save holds up the step behind it while the arrays are copied, and may slow down the next ones while its files
are written. The second half of each period is quiet: nothing is copied or written then. So, beside steps of the same
run at the same time, a save costs what its period took longer than as many quiet steps. One JSON line.
"""

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT = 0.02  # of the time, that saves may take


def train(options: argparse.Namespace, folder: Path) -> tuple[list[float], dict[str, float]]:
    """Seconds between the lines of steps (the first is that of step 2), and the run's own account of its time."""
    steps = options.every * (options.saves + 1)
    command = [
        sys.executable, "-m", "meshtrain.train", "--config", str(ROOT / "configs/runs/bench.py"),
        "--layout", str(ROOT / f"configs/layouts/{options.layout}.py"), f"--config.workdir={folder}/run",
        f"--config.steps={steps}", f"--config.cpu_devices={options.devices}",
        f"--config.checkpoint.every={options.every}", f"--config.compilation_cache={folder}/cache",
    ]  # fmt: skip
    moments, log = [], []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            log.append(line)
            if re.match(r"step +[\d,]+/", line):
                moments.append(time.monotonic())
    if child.returncode != 0 or len(moments) != steps:
        sys.exit("".join(log) + f"\nexit code {child.returncode} after {len(moments)} of {steps} steps")
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    return gaps, json.loads((folder / "run" / "goodput.json").read_text())[-1]["seconds"]


def advised(cost: float) -> float:
    """Seconds between saves that lose least on 16,384 H100s at the failure rate of Llama 3's training."""
    sys.path.insert(0, str(ROOT))
    from meshtrain.cost.goodput import HOUR, advised_interval
    from meshtrain.cost.quantity import Seconds
    from meshtrain.run.cluster_file import read_cluster

    failures = read_cluster(str(ROOT / "configs/clusters/h100_roce.py"), "cluster").failures
    assert failures is not None
    return advised_interval(Seconds(cost), Seconds(HOUR / (failures * 16384))).value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=16, help="steps between saves")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--layout", default="single")
    parser.add_argument("--devices", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gaps, seconds = train(options, Path(folder))
    every, half = options.every, options.every // 2
    # gaps[i] leads to step i + 2; the first period holds what a start takes and is only looked at for quiet steps.
    periods = [gaps[end - 1 : end - 1 + every] for end in range(every, every * (options.saves + 1), every)]
    quiet = statistics.median(itertools.chain(gaps[half : every - 1], *(period[half:] for period in periods)))
    costs = [sum(period) - every * quiet for period in periods]
    cost = statistics.mean(costs)
    print(json.dumps({
        "layout": options.layout, "devices": options.devices, "saves": options.saves, "steps between saves": every,
        "quiet step s": round(quiet, 3), "step behind a save s": [round(period[0], 2) for period in periods],
        "held up by a save s": round(seconds["save"] / options.saves, 3),
        "costs of the saves s": [round(cost, 2) for cost in costs],
        "share of the time": round(cost / (every * quiet), 4),
        f"under {LIMIT:.0%} from every": -(-cost // (LIMIT * quiet)),
        "advised on 16384 GPUs every s": round(advised(max(cost, 1e-3))),
        "share at that": round(cost / advised(max(cost, 1e-3)), 4),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
