"""Real processes and real signals: whatever happens, the run goes on as if it had not (cases K2, S3, G3)."""

import json
import random
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from meshtrain.io import checkpoint_folder
from tests.run.corpus import prepare_bytes
from tests.run.runs import MODEL, Process, numbers, records, run_here, write_run

pytestmark = pytest.mark.slow


def test_kill_9_at_any_step_and_again(tmp_path: Path, cache: Path, unbroken: Path) -> None:
    """Two kills at random moments and a last start: bitwise the unbroken run, one record per step."""
    run = write_run(tmp_path)
    random.seed(0)
    for _ in range(2):
        process = Process(*run, cache=cache)
        process.wait_for(f"step {random.randint(2, 5)}/8")
        time.sleep(random.uniform(0, 0.1))
        process.signal(signal.SIGKILL)
        assert process.finish() in (-signal.SIGKILL, 0)
    process = Process(*run, cache=cache)
    assert process.finish() == 0, process.output
    assert numbers(tmp_path) == numbers(unbroken)
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path.suffix]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("compiling the training step", signal.SIGTERM),
        ("step 2/8", signal.SIGTERM),
        ("step 4/8", signal.SIGUSR1),
        ("step 5/8", signal.SIGINT),
    ],
)
def test_a_signal_saves_the_step_and_the_same_command_goes_on(
    tmp_path: Path, cache: Path, unbroken: Path, here: list[str], moment: str, number: int
) -> None:
    run = write_run(tmp_path, checkpoint={"every": 100})
    process = Process(*run, cache=cache)
    process.wait_for(moment)
    process.signal(number)
    code = process.finish()
    if code == 0:  # the last step was reached first
        assert moment.startswith("step")
    else:
        assert code == 5, process.output
        assert signal.Signals(number).name in process.output
    if moment.startswith("step"):
        saved = checkpoint_folder.newest(tmp_path / "run" / "checkpoints", print)
        assert saved is not None
        assert saved.step == max(records(tmp_path))
    assert run_here(*run, *here) == 0
    assert numbers(tmp_path) == numbers(unbroken)


def test_a_signal_during_an_evaluation_leaves_it_to_the_next_start(
    tmp_path: Path, cache: Path, here: list[str]
) -> None:
    run = write_run(
        tmp_path, data=prepare_bytes(tmp_path), model=MODEL | {"vocab": 257}, eval_every=2, checkpoint={"every": 100}
    )
    process = Process(*run, cache=cache)
    process.wait_for("step 2/8")
    process.signal(signal.SIGTERM)
    assert process.finish() == 5, process.output
    assert run_here(*run, *here) == 0
    assert sorted(records(tmp_path, "eval_loss")) == [2, 4, 6, 8]
    assert sorted(records(tmp_path)) == list(range(1, 9))


def test_two_processes_never_train_in_one_folder(tmp_path: Path, cache: Path) -> None:
    run = write_run(tmp_path, steps=100_000, log_every=1000)
    first = Process(*run, cache=cache)
    first.wait_for("step 1/")
    second = Process(*run, cache=cache)
    assert second.finish() == 2
    assert f"process {first.child.pid} on {socket.gethostname()} is training in this folder" in second.output
    first.signal(signal.SIGTERM)
    assert first.finish() == 5


def test_memory_stays_flat(tmp_path: Path, cache: Path) -> None:
    """Case G3: 2,000 tiny steps with logs, evaluations and saves; memory grows by < 5 % after the first 300."""
    run = write_run(
        tmp_path, steps=2000, log_every=100, eval_every=100, eval_batches=2, checkpoint={"every": 50}, tensorboard=True,
        data=prepare_bytes(tmp_path), model=MODEL | {"vocab": 257}, cpu_devices=1,
        layout=str(Path(__file__).parents[2] / "configs" / "layouts" / "single.py"),
    )  # fmt: skip
    process = Process(*run, cache=cache)
    memory = []
    for step in (*range(300, 2000, 100), 1900):
        process.wait_for(f"step {step}/")
        memory.append(psutil.Process(process.child.pid).memory_info().rss)
    assert process.finish() == 0
    assert max(memory[-3:]) < 1.05 * max(memory[:3]), [f"{size / 1e6:.0f} MB" for size in memory]
    assert len(records(tmp_path)) == 2000
    assert len(json.dumps(records(tmp_path, "eval_loss"))) > 0
