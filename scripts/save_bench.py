"""What saves cost training, measured: the benchmark with a save every so many steps, against its own quiet steps.

    python scripts/save_bench.py [--every 16] [--saves 3] [--layout single --devices 1]

One run of `python -m meshtrain.train`, as a user would start it, with the clock outside: a step counts when its line
arrives. A save holds up the step behind it while the arrays are copied, and may slow down the next ones while its files
are written. The second half of each period is quiet: nothing is copied or written then. So, beside steps of the same
run at the same time, a save costs what its period took longer than as many quiet steps. One JSON line.

Steps of the benchmark keep all cores busy, so what a save needs of them is lost to steps: its processor time, told of
the same periods and divided by the cores, is the same cost, and depends little on who else uses the machine.
"""

import argparse
import itertools
import json
import math
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


def train(options: argparse.Namespace, folder: Path) -> tuple[list[float], list[float], dict[str, float]]:
    """Between lines of steps (the first is that of step 2): seconds, and seconds of all cores; the run's account."""
    steps = options.every * (options.saves + 1)
    command = [
        sys.executable, "-m", "meshtrain.train", "--config", str(ROOT / "configs/runs/bench.py"),
        "--layout", str(ROOT / f"configs/layouts/{options.layout}.py"), f"--config.workdir={folder}/run",
        f"--config.steps={steps}", f"--config.cpu_devices={options.devices}",
        f"--config.checkpoint.every={options.every}", f"--config.compilation_cache={folder}/cache",
    ]  # fmt: skip
    moments, work, log = [], [], []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            log.append(line)
            if re.match(r"step +[\d,]+/", line):
                moments.append(time.monotonic())
                work.append(processor_time(child.pid))
    if child.returncode != 0 or len(moments) != steps:
        sys.exit("".join(log) + f"\nexit code {child.returncode} after {len(moments)} of {steps} steps")
    gaps, works = ([after - before for before, after in itertools.pairwise(each)] for each in (moments, work))
    return gaps, works, json.loads((folder / "run" / "goodput.json").read_text())[-1]["seconds"]


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def costs_of_saves(gaps: list[float], every: int, saves: int) -> tuple[float, list[float]]:
    """(a quiet step, what each save added to its period). gaps[i] leads to step i + 2; the first period has no save."""
    half = every // 2
    periods = [gaps[number * every - 1 : (number + 1) * every - 1] for number in range(1, saves + 1)]
    quiet = statistics.median(itertools.chain(gaps[half : every - 1], *(period[half:] for period in periods)))
    return quiet, [sum(period) - every * quiet for period in periods]


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
        gaps, works, seconds = train(options, Path(folder))
    every, cores = options.every, os.cpu_count() or 1
    quiet, costs = costs_of_saves(gaps, every, options.saves)
    quiet_work, works_of_saves = costs_of_saves(works, every, options.saves)
    cost, work = statistics.mean(costs), statistics.mean(works_of_saves) / cores
    print(json.dumps({
        "layout": options.layout, "devices": options.devices, "saves": options.saves, "steps between saves": every,
        "quiet step s": round(quiet, 3), "of all cores s": round(quiet_work, 3),
        "held up by a save s": round(seconds["save"] / options.saves, 3),
        "steps s": [round(gap, 2) for gap in gaps],  # the first save lies in the one numbered `every`
        "costs of the saves s": [round(each, 2) for each in costs],
        "share of the time": round(cost / (every * quiet), 4),
        "cores' time of the saves s": [round(each, 2) for each in works_of_saves],
        "share by that": round(work / (every * quiet_work / cores), 4),
        f"under {LIMIT:.0%} from every": math.ceil(max(cost, work) / (LIMIT * quiet)),
        "advised on 16384 GPUs every s": round(advised(max(cost, work, 1e-3))),
        "share at that": round(max(cost, work) / advised(max(cost, work, 1e-3)), 4),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
