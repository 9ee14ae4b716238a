"""Tiny runs for the tests of the loop: a config file made of a dict, runs inside this process, and real processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

from meshtrain import train
from meshtrain.io import checkpoint
from meshtrain.io.checkpoint_folder import Saved
from meshtrain.layout import path_name, single_placement
from meshtrain.run.config import RunConfig
from meshtrain.step import state_specs
from meshtrain.step.state import abstract_state

ROOT = Path(__file__).parents[2]
LAYOUTS = ROOT / "configs" / "layouts"

MODEL = {
    "num_layers": 2, "embed": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "mlp": 64, "vocab": 64,
    "max_length": 64,
}  # fmt: skip
# A run of 8 steps on random tokens, saved every 3 steps: seconds, most of them compilation.
RUN: dict[str, Any] = {
    "model": MODEL,
    "data": {"kind": "synthetic", "length": 16},
    "optimizer": {"learning_rate": 1e-2, "schedule": {"warmup": 3, "steps": 20}},
    "global_batch": 8,
    "steps": 8,
    "layout": str(LAYOUTS / "zero3.py"),
    "cpu_devices": 8,
    "log_every": 1,
    "tensorboard": False,
    "checkpoint": {"every": 3},
}


def write_run(folder: Path, **changes: Any) -> list[str]:
    """A config file below `folder` whose run lives in `folder`/run; returns the arguments that name it."""
    run = RUN | {"workdir": str(folder / "run")} | changes
    path = folder / "configs" / "runs" / "test.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"def get_config():\n    return {run!r}\n")
    return ["--config", str(path)]


def records(folder: Path, key: str = "loss") -> dict[int, dict[str, Any]]:
    """step -> its record (or, by key "eval_loss", its evaluation); there is one for each."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if key in line]
    by_step = {line["step"]: line for line in lines}
    assert len(by_step) == len(lines), f"steps are recorded twice: {[line['step'] for line in lines]}"
    return by_step


def numbers(folder: Path, *keys: str) -> list[tuple[Any, ...]]:
    """The values of each step that must not depend on when or where it was computed, in order of steps."""
    keys = keys or ("step", "loss", "ce", "grad_norm", "learning_rate", "tokens", "skipped")
    return [tuple(record[key] for key in keys) for _, record in sorted(records(folder).items())]


def run_here(*argv: str) -> int:
    """The trainer inside this process, on its 8 virtual devices. Returns the exit code."""
    return train.main(list(argv))


def restored(saved: Saved, config: RunConfig) -> dict[str, jax.Array]:
    """path -> array of a checkpoint, on one device."""
    specs = state_specs(config.model, config.optimizer)
    state = checkpoint.restore(saved, specs, abstract_state(specs, single_placement()))
    return {path_name(path): x for path, x in jax.tree_util.tree_flatten_with_path(state)[0]}


class Process:
    """The trainer as a real process."""

    def __init__(
        self, *argv: str, cache: Path | None = None, program: str = "meshtrain.train", **environment: str
    ) -> None:
        # The compiler's flags of this session, for the same numbers, but the trainer makes its own devices.
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
        keep = os.environ | {"XLA_FLAGS": " ".join(flags)}
        self.child = subprocess.Popen(
            [sys.executable, "-m", program, *argv, f"--config.compilation_cache={cache or 'off'}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=keep | environment,
        )  # fmt: skip
        self.output = ""

    def wait_for(self, text: str, seconds: float = 180) -> None:
        """Returns when a line with `text` was printed."""
        assert self.child.stdout is not None
        deadline = time.monotonic() + seconds
        while text not in self.output:
            line = self.child.stdout.readline()
            assert line, f"the process ended (code {self.child.wait()}) without {text!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{self.output}"
            self.output += line

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def finish(self, seconds: float = 240) -> int:
        """Waits for the end; returns the exit code."""
        try:
            rest, _ = self.child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            rest, _ = self.child.communicate()
            raise AssertionError(f"the process did not end within {seconds} s:\n{self.output}{rest}") from None
        self.output += rest
        return self.child.returncode


def finished(*argv: str, cache: Path | None = None) -> Process:
    """A process that ran to its end."""
    process = Process(*argv, cache=cache)
    process.finish()
    return process
