"""Breaks a run again and again, in every way that machines break, and proves in the end that nothing was lost.

    python scripts/soak.py                        16 faults, two of each kind: minutes
    python scripts/soak.py --faults 56            more of them; --hours 8 goes on for that long
    python scripts/soak.py --folder DIR           goes on with a soak that was itself interrupted
    python scripts/soak.py --one-shape            keeps two processes and one layout

A tiny model is trained by 1 to 4 processes on this machine's CPU. Each start meets one fault at a random moment: kill
-9, SIGTERM, SIGUSR1 or SIGSTOP of a random process, a full disk, a truncated file of the data or of a checkpoint; some
also come with another number of processes, of devices or another layout than the one before. All processes must end in
time and with the documented code, and the next start goes on. In the end its losses are compared with two runs:

- one without faults that changes its shape after the same steps: equal to the bit;
- one without faults or changes: equal to the bit up to the first change, and within 1e-5 behind it,

and the samples of all steps with the plan: each once, and in order.
"""

import argparse
import itertools
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
BATCH, LENGTH = 12, 16
SHAPES = [  # (processes, devices of all, layout, flags): the first one is that of a run that keeps its shape
    (2, 4, "zero3", ()), (4, 4, "zero1", ()), (1, 1, "single", ()), (3, 3, "ddp", ()), (2, 4, "tensor_sequence", ()),
    (2, 4, "pipeline_1f1b", ("--layout.mesh.stage=2", "--layout.pipeline.microbatches=2")), (4, 4, "tensor_zero3", ()),
    (1, 4, "zero3", ()),
]  # fmt: skip
CHANGE = 0.6  # how often a start has another shape than the one before
BOUND = 120.0  # seconds within which all processes must have ended after a fault
STEPS_OF_A_START = 8
CODES = {  # what a process may end with, by the fault that its run met (0: the run was faster than the fault)
    "kill": {-signal.SIGKILL, 7, 0}, "SIGTERM": {5, 0}, "SIGUSR1": {5, 0}, "SIGSTOP": {7, -signal.SIGKILL, 0},
    "full disk": {4}, "truncated data": {2, 0}, "truncated checkpoint": {0},
}  # fmt: skip
SIGNALS = {"kill": signal.SIGKILL} | {name: signal.Signals[name] for name in ("SIGTERM", "SIGUSR1", "SIGSTOP")}
ASKED = ("SIGTERM", "SIGUSR1")
EARLY = {7, 5, 0}  # before all processes have met, one that was asked to stop ends alone and the others miss it
DECK = [*CODES, "kill"]


def main() -> int:
    """0 where nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=2 * len(DECK))
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--one-shape", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, end)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"in {folder}", flush=True)
    return Soak(folder, arguments.seed, not arguments.one_shape).run(arguments.faults, arguments.hours * 3600)


def end(number: int, frame: FrameType | None) -> None:
    """The soak itself is interrupted: its processes end with it."""
    raise SystemExit(128 + number)


@dataclass
class Soak:
    """One broken run below `folder`, and the ones that it is compared with."""

    folder: Path
    seed: int
    elastic: bool
    shape: int = 0  # of the start before
    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def run(self, faults: int, seconds: float) -> int:
        """Breaks the run `faults` times, or for so long; 0 where nothing was lost."""
        began, state = time.monotonic(), self.folder / "soak.json"
        if state.exists():
            self.counts, self.wrong, self.shape = json.loads(state.read_text())
        else:
            prepare(self.folder)
        number = sum(self.counts.values())
        while number < faults or time.monotonic() - began < seconds:
            chance = random.Random(self.seed * 1_000_003 + number)
            kind = random.Random(self.seed * 1009 + number // len(DECK)).sample(DECK, len(DECK))[number % len(DECK)]
            if self.elastic and chance.random() < CHANGE:
                self.shape = chance.randrange(len(SHAPES))
            if kind == "SIGSTOP" and SHAPES[self.shape][0] == 1:
                self.shape = 0  # with one process nobody would be there to notice
            number += 1
            told = self.meet(kind, number * STEPS_OF_A_START, chance)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            state.write_text(json.dumps([self.counts, self.wrong, self.shape]))
            print(f"{number:3d}  {kind:<21} {name_of(self.shape):<19} {told}", flush=True)
        steps = (number + 1) * STEPS_OF_A_START
        self.finish("broken", steps)
        read, last = readings(self.folder / "broken-samples"), 0
        for shape, group in itertools.groupby(read[step][2] for step in range(1, steps + 1)):
            last += len(list(group))
            self.finish("changing", last, shape)
        self.finish("unbroken", steps)
        return self.judge(steps)

    def reached(self) -> int:
        """The last step on record."""
        return max((record["step"] for record in records(self.folder / "broken")), default=0)

    def meet(self, kind: str, steps: int, chance: random.Random) -> str:
        """One start that meets one fault, to the end of all its processes; what happened, in words."""
        shard = self.folder / "data" / "train" / "shard-00000.bin"
        whole, began = shard.read_bytes(), time.monotonic()
        run = Start(self.folder, "broken", self.shape, steps, full_disk=kind == "full disk")
        try:
            early, where = self.wait_for_the_moment(run, chance), f"step {self.reached()}"
            if kind == "truncated data":
                os.truncate(shard, len(whole) // 3)
            victim = chance.choice(run.processes)
            if kind in SIGNALS:
                where += f", process {run.processes.index(victim)}"
                victim.send_signal(SIGNALS[kind])
            codes = run.wait(BOUND, stopped=victim if kind == "SIGSTOP" else None)
        finally:
            run.close()
            shard.write_bytes(whole)
        allowed = CODES[kind]
        if kind in ASKED and early:
            allowed = allowed | EARLY | {-SIGNALS[kind]}
        elif kind in ASKED and len(set(codes)) > 1:
            allowed = set()
        if run.late or not set(codes) <= allowed:
            self.wrong.append(f"after {kind}: exit codes {codes}{', one had not ended in time' * run.late}")
            (self.folder / f"wrong-{len(self.wrong)}.log").write_text(f"{self.wrong[-1]}\n{run.output()}")
            print(f"     {self.wrong[-1]}", flush=True)
        if kind == "truncated checkpoint":
            where = damage(self.folder / "broken" / "checkpoints", chance)
        return f"{where}: exit codes {', '.join(map(str, codes))} ({time.monotonic() - began:.0f} s)"

    def wait_for_the_moment(self, run: "Start", chance: random.Random) -> bool:
        """Some moment of the start, or some step of it; whether it came before any step."""
        before = self.reached()
        if chance.random() < 0.3:
            time.sleep(chance.uniform(0, 12))
            return self.reached() == before
        step = before + chance.randint(1, STEPS_OF_A_START)
        deadline = time.monotonic() + BOUND
        while self.reached() < step and run.lives() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 0.3))
        return self.reached() == before

    def finish(self, name: str, steps: int, shape: int = 0) -> None:
        """A start without a fault, to the last step."""
        run = Start(self.folder, name, shape, steps)
        try:
            codes = run.wait(600.0)
        finally:
            run.close()
        if set(codes) != {0}:
            raise SystemExit(f"{name}: exit codes {codes}\n{run.output()}")
        goodput = next((line for line in run.output().splitlines() if line.startswith("goodput")), "nothing to do")
        print(f"{name} to step {steps}, {name_of(shape)}: {goodput}", flush=True)

    def judge(self, steps: int) -> int:
        """Compares the runs; 0 where they are the same."""
        broken, changing, unbroken = (records(self.folder / name) for name in ("broken", "changing", "unbroken"))
        read, wrong = readings(self.folder / "broken-samples"), list(self.wrong)
        shapes = [read[step][2] for step in range(1, steps + 1)]
        for name, found in (("broken", broken), ("changing", changing), ("unbroken", unbroken)):
            if [record["step"] for record in found] != list(range(1, steps + 1)):
                wrong.append(f"{name}: steps are missing, twice or out of order")
        differ = [a["step"] for a, b in zip(broken, changing, strict=False) if a["loss"] != b["loss"]]
        if differ:
            wrong.append(f"losses of the run that changes its shape without faults differ from step {differ[0]} on")
        far = [abs(a["loss"] - b["loss"]) for a, b in zip(broken, unbroken, strict=False)]
        before = len(list(itertools.takewhile(lambda shape: shape == 0, shapes)))
        if max(far[:before], default=0.0) > 0.0 or max(far) > 1e-5:
            wrong.append(f"losses of the unbroken run differ by up to {max(far):.2e}")
        for step in range(1, steps + 1):
            if read[step][1] != set(range((step - 1) * BATCH, step * BATCH)):
                wrong.append(f"step {step} read the samples {sorted(read[step][1])}")
        print(json.dumps({
            "faults": sum(self.counts.values()), "kinds": self.counts, "steps": steps,
            "steps by shape": {name_of(shape): shapes.count(shape) for shape in sorted(set(shapes))},
            "changes of shape": sum(before != after for before, after in itertools.pairwise(shapes)),
            "steps equal to the bit with the run that changes": steps - len(differ),
            "largest difference of a loss from the unbroken run": max(far), "wrong": wrong,
        }))  # fmt: skip
        return 1 if wrong else 0


class Start:
    """The processes of one start of a run."""

    def __init__(self, folder: Path, name: str, shape: int, steps: int, full_disk: bool = False) -> None:
        self.count, devices, layout, flags = SHAPES[shape]
        self.logs = [folder / f"{name}.{index}.log" for index in range(self.count)]
        self.late = False  # whether a process did not end in time
        samples = folder / f"{name}-samples"
        samples.mkdir(exist_ok=True)
        command = [
            sys.executable, str(ROOT / "scripts" / "soak_process.py"), f"{samples}/{time.time_ns()}-{shape}",
            f"--config={folder / 'config.py'}", f"--config.workdir={folder / name}", f"--config.steps={steps}",
            f"--layout={ROOT / 'configs' / 'layouts' / layout}.py", f"--config.cpu_devices={devices}", *flags,
        ]  # fmt: skip
        meeting = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", str(self.count), "--wait", "40"]
        environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.processes = []
        for index, log in enumerate(self.logs):
            which = [*meeting, "--process", str(index)] if self.count > 1 else []
            with open(log, "w") as out:
                if full_disk and index == self.count - 1:  # no file of this one may become as large as a checkpoint's
                    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, before[1]))
                child = subprocess.Popen(
                    [*command, *which], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
                )
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            self.processes.append(child)

    def lives(self) -> bool:
        """Whether any process is still there."""
        return any(child.poll() is None for child in self.processes)

    def wait(self, seconds: float, stopped: "subprocess.Popen[bytes] | None" = None) -> list[int]:
        """The exit codes of all, within the time; a `stopped` one is killed once the others have ended."""
        deadline = time.monotonic() + seconds
        for child in self.processes:
            if child is stopped and self.count > 1:
                continue
            if child is stopped:
                child.kill()  # alone: nobody is there to notice
            try:
                child.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                self.late = True
                child.kill()
                child.wait()
        if stopped is not None:
            stopped.kill()
            stopped.wait()
        return [child.returncode for child in self.processes]

    def output(self) -> str:
        """What all processes have printed."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in self.logs)

    def close(self) -> None:
        """Nothing of it is left running."""
        for child in self.processes:
            if child.poll() is None:
                child.kill()
                child.wait()


def prepare(folder: Path) -> None:
    """The data and the config of the run."""
    sys.path.insert(0, str(ROOT))
    from meshtrain.io import PrepareConfig, prepare

    text = folder / "text"
    text.mkdir(parents=True)
    for number in range(60):
        (text / f"{number}.txt").write_text(f"the {number}th text says {number} times {number}. " * 12)
    prepare(PrepareConfig((f"{text}/*.txt",), "byte", str(folder / "data"), held_out=0.1), progress=False)
    model = {
        "num_layers": 2, "embed": 32, "num_heads": 4, "num_kv_heads": 4, "head_dim": 8, "mlp": 64, "vocab": 260,
        "max_length": 64,
    }  # fmt: skip
    run = {
        "model": model, "data": {"kind": "tokens", "paths": [str(folder / "data")], "length": LENGTH},
        "optimizer": {"learning_rate": 1e-3, "schedule": {"warmup": 3, "steps": 2000}}, "global_batch": BATCH,
        "steps": 1, "workdir": "unused", "layout": str(ROOT / "configs/layouts/zero3.py"), "tensorboard": False,
        "checkpoint": {"every": 5}, "eval_every": 7, "eval_batches": 3, "log_every": 1,
        "watch": {"lost": 5, "floor": 30, "start": 300}, "compilation_cache": str(folder / "compiled"),
    }  # fmt: skip
    (folder / "config.py").write_text(f"def get_config():\n    return {run!r}\n")


def readings(folder: Path) -> dict[int, tuple[int, set[int], int]]:
    """By step: the start that read it last, which is the one on record; the samples that it read; its shape.

    Half a line at a file's end is what a kill left. SystemExit where a process read steps out of order.
    """
    found: dict[int, tuple[int, set[int], int]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        start, shape = map(int, path.name.split("-")[:2])
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if any(after[0] != before[0] + 1 for before, after in itertools.pairwise(lines)):
            raise SystemExit(f"{path} read the steps {[step for step, _ in lines]}")
        for step, samples in lines:
            last = found.get(step, (start, set(), shape))
            if start >= last[0]:
                found[step] = (start, set(samples) | (last[1] if start == last[0] else set()), shape)
    return found


def name_of(shape: int) -> str:
    """`2 x zero3`: processes and layout."""
    return f"{SHAPES[shape][0]} x {SHAPES[shape][2]}"


def records(folder: Path) -> list[dict[str, Any]]:
    """The records of steps."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return [record for record in found if "loss" in record]


def damage(checkpoints: Path, chance: random.Random) -> str:
    """Truncates a file of the newest checkpoint, if there is an older one; which one."""
    steps = sorted(checkpoints.glob("step_????????"))
    if len(steps) < 2:
        return "there was no checkpoint to fall back to"
    files = [path for path in steps[-1].rglob("*") if path.is_file() and path.stat().st_size]
    victim = chance.choice(files)
    os.truncate(victim, victim.stat().st_size // 2)
    return str(victim.relative_to(checkpoints))


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
