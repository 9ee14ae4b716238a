"""Breaks a run again and again, in every way that machines break, and proves in the end that nothing was lost.

    python scripts/soak.py                        a dozen faults, minutes
    python scripts/soak.py --faults 50            more of them; --hours 8 goes on for that long
    python scripts/soak.py --folder DIR           goes on with a soak that was itself interrupted
    python scripts/soak.py --elastic              also changes the number of processes and the layout between starts

A tiny model is trained by several processes on this machine's CPU. Each start meets one fault at a random moment:
kill -9, SIGTERM or SIGUSR1, SIGSTOP of a random process, a full disk, a truncated file of a checkpoint or of the data.
All must end in time and with the documented code, and the next start goes on. Then the losses of all steps are compared
with those of a run without faults (equal to the bit; with --elastic within 1e-5), and the samples read with the plan.
"""

import argparse
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
from typing import Any

ROOT = Path(__file__).parents[1]
DEVICES, BATCH, LENGTH = 4, 8, 16
WORLDS = [  # (processes, layout), the first one being that of a run that keeps its shape
    (2, "zero3"), (1, "zero3"), (4, "zero1"), (2, "tensor_zero3"), (1, "single"), (2, "tensor_sequence"),
]  # fmt: skip
BOUND = 120.0  # seconds within which all processes must have ended after a fault
STEPS_OF_A_START = 8
EARLY = {7, 5, 0}  # before all processes have met, one that was asked to stop ends alone and the others miss it
CODES = {  # what a process may end with, by the fault that its run met (0: the run was faster than the fault)
    "kill": {-signal.SIGKILL, 7, 0}, "SIGTERM": {5, 0}, "SIGUSR1": {5, 0}, "SIGSTOP": {7, -signal.SIGKILL, 0},
    "full disk": {4}, "truncated data": {2, 0}, "truncated checkpoint": {0},
}  # fmt: skip


def main() -> int:
    """0 where nothing was lost."""
    if "--member" in sys.argv:
        return member(sys.argv[sys.argv.index("--member") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=12)
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    return Soak(folder, arguments.seed, arguments.elastic).run(arguments.faults, arguments.hours * 3600)


@dataclass
class Soak:
    """One broken run below `folder`, and the unbroken one that it is compared with."""

    folder: Path
    seed: int
    elastic: bool
    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def run(self, faults: int, seconds: float) -> int:
        """Breaks the run `faults` times, or for so long; 0 where nothing was lost."""
        began, state = time.monotonic(), self.folder / "soak.json"
        if state.exists():
            self.counts, self.wrong = json.loads(state.read_text())
        else:
            prepare(self.folder)
        number = sum(self.counts.values())
        chance = random.Random(self.seed + number)
        while number < faults or time.monotonic() - began < seconds:
            number += 1
            kind = chance.choice([*CODES, "kill"])
            world = chance.choice(WORLDS) if self.elastic else WORLDS[0]
            self.meet(kind, world, number * STEPS_OF_A_START, chance)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            state.write_text(json.dumps([self.counts, self.wrong]))
            print(f"{number:3d}  {kind:<22} {world[0]} x {world[1]:<16} at step {self.reached()}", flush=True)
        steps = (number + 1) * STEPS_OF_A_START
        self.finish("broken", steps)
        self.finish("unbroken", steps)
        return self.judge(steps)

    def reached(self) -> int:
        """The last step on record."""
        return max((record["step"] for record in records(self.folder / "broken")), default=0)

    def meet(self, kind: str, world: tuple[int, str], steps: int, chance: random.Random) -> None:
        """One start that meets one fault, to the end of all its processes."""
        shard = self.folder / "data" / "train" / "shard-00000.bin"
        whole = shard.read_bytes()
        run = Start(self.folder, "broken", world, steps, full_disk=kind == "full disk")
        try:
            early = self.wait_for_the_moment(run, chance)
            if kind == "truncated data":
                os.truncate(shard, len(whole) // 3)
            victim = chance.choice(run.processes)
            if kind in ("kill", "SIGTERM", "SIGUSR1", "SIGSTOP"):
                victim.send_signal(signal.SIGKILL if kind == "kill" else signal.Signals[kind])
            codes = run.wait(BOUND, stopped=victim if kind == "SIGSTOP" else None)
        finally:
            run.close()
            shard.write_bytes(whole)
        allowed = CODES[kind]
        if kind in ("SIGTERM", "SIGUSR1") and early:
            allowed = allowed | EARLY | {-signal.Signals[kind]}
        elif kind in ("SIGTERM", "SIGUSR1") and len(set(codes)) > 1:
            allowed = set()
        if run.late or not set(codes) <= allowed:
            self.wrong.append(f"after {kind}: exit codes {codes}{', one had not ended in time' * run.late}")
            (self.folder / f"wrong-{len(self.wrong)}.log").write_text(f"{self.wrong[-1]}\n{run.output()}")
            print(f"     {self.wrong[-1]}", flush=True)
        if kind == "truncated checkpoint":
            damage(self.folder / "broken" / "checkpoints", chance)

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

    def finish(self, name: str, steps: int) -> None:
        """A start without a fault, to the last step."""
        run = Start(self.folder, name, WORLDS[0], steps)
        codes = run.wait(600.0)
        run.close()
        if set(codes) != {0}:
            raise SystemExit(f"{name}: exit codes {codes}\n{run.output()}")
        print(next(line for line in run.output().splitlines() if line.startswith("goodput")), flush=True)

    def judge(self, steps: int) -> int:
        """Compares both runs; 0 where they are the same."""
        broken, unbroken = (records(self.folder / name) for name in ("broken", "unbroken"))
        wrong = list(self.wrong)
        if [record["step"] for record in broken] != list(range(1, steps + 1)):
            wrong.append("steps are missing, twice or out of order")
        far = max(abs(a["loss"] - b["loss"]) for a, b in zip(broken, unbroken, strict=False))
        if far > (1e-5 if self.elastic else 0.0):
            wrong.append(f"losses differ by up to {far:.2e}")
        wrong += samples_wrong(self.folder / "broken-samples", steps)
        print(json.dumps({
            "faults": sum(self.counts.values()), "kinds": self.counts, "steps": steps, "elastic": self.elastic,
            "largest difference of a loss": far, "wrong": wrong,
        }))  # fmt: skip
        return 1 if wrong else 0


class Start:
    """The processes of one start of a run."""

    def __init__(self, folder: Path, name: str, world: tuple[int, str], steps: int, full_disk: bool = False) -> None:
        self.count, layout = world
        self.logs = [folder / f"{name}.{index}.log" for index in range(self.count)]
        port = free_port()
        samples = folder / f"{name}-samples"
        samples.mkdir(exist_ok=True)
        argv = [
            f"--config={folder / 'config.py'}", f"--config.workdir={folder / name}", f"--config.steps={steps}",
            f"--layout={ROOT / 'configs' / 'layouts' / layout}.py",
            f"--config.cpu_devices={1 if layout == 'single' else DEVICES}",
        ]  # fmt: skip
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.processes = []
        self.late = False  # whether a process did not end in time
        for index, log in enumerate(self.logs):
            which = [
                "--coordinator",
                f"127.0.0.1:{port}",
                "--processes",
                str(self.count),
                "--process",
                str(index),
                "--wait",
                "40",
            ]
            with open(log, "w") as out:
                if full_disk and index == self.count - 1:  # no file of this one may become as large as a checkpoint's
                    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, before[1]))
                command = [
                    sys.executable,
                    __file__,
                    "--member",
                    str(samples),
                    *argv,
                    *(which if self.count > 1 else []),
                ]
                child = subprocess.Popen(
                    command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
                    env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
                )  # fmt: skip
            self.processes.append(child)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

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


def member(argv: list[str]) -> int:
    """A process of the run: the trainer, with slow moments, which also writes down the samples that it takes."""
    samples = Path(argv[0]) / f"{os.getpid()}.jsonl"
    from meshtrain import train
    from meshtrain.io import checkpoint_folder
    from meshtrain.io.loader import Batches
    from meshtrain.io.windows import Windows

    place, read, take = Batches._place, Batches._read, checkpoint_folder.take_checksums

    def slow_read(self: Any, step: int) -> Any:
        time.sleep(1.0 if random.random() < 0.05 else 0.0)  # so that signals also come in a wait for data
        return read(self, step)

    def slow_take(partial: Path, me: Any) -> None:
        time.sleep(random.uniform(0, 1))  # and in a save
        take(partial, me)

    def note(self: Any, rows: Any, step: int) -> Any:
        if isinstance(self._source, Windows):  # and not one of an evaluation
            with open(samples, "a") as file:
                file.write(
                    json.dumps([step + 1, time.time(), (step * self._global_batch + self._mine).tolist()]) + "\n"
                )
        return place(self, rows, step)

    Batches._place, Batches._read = note, slow_read  # type: ignore[method-assign]
    checkpoint_folder.take_checksums = slow_take
    train.leave(train.main(argv[1:]))
    return 0


def samples_wrong(folder: Path, steps: int) -> list[str]:
    """What is wrong with the samples of each step, as read the last time that it was done."""
    last: dict[int, dict[int, float]] = {}
    for path in folder.glob("*.jsonl"):
        before = None
        for line in path.read_text().splitlines():
            step, when, samples = json.loads(line)
            if before is not None and step != before + 1:
                return [f"{path.name}: step {step} came after step {before}"]
            before = step
            for sample in samples:
                last.setdefault(step, {})[sample] = when
    for step in range(1, steps + 1):
        if sorted(last.get(step, {})) != list(range((step - 1) * BATCH, step * BATCH)):
            return [f"step {step} read the samples {sorted(last.get(step, {}))}"]
    return []


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


def damage(checkpoints: Path, chance: random.Random) -> None:
    """Truncates a file of the newest checkpoint, if there is an older one."""
    steps = sorted(checkpoints.glob("step_????????"))
    if len(steps) > 1:
        files = [path for path in steps[-1].rglob("*") if path.is_file() and path.stat().st_size]
        victim = chance.choice(files)
        os.truncate(victim, victim.stat().st_size // 2)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
