"""Two real processes and whatever happens to one of them: all end alike, and the run goes on as if it had not."""

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from meshtrain.io import checkpoint_folder
from tests.run.corpus import prepare_bytes
from tests.run.hosts import finish_all, start
from tests.run.runs import MODEL, Process, numbers, records, write_run

pytestmark = pytest.mark.slow

STEPS, EVERY = 16, 6
WATCH = {"floor": 60, "lost": 8, "start": 240}


def write_two(folder: Path, **changes: Any) -> list[str]:
    """A run of two processes with two devices each, that is evaluated and saved on its way: case D2.

    It goes five times through its training set, which is no multiple of a batch; what is held out is less than one.
    """
    data = prepare_bytes(folder, num_texts=12, times=1)
    run = write_run(
        folder, data=data, model=MODEL | {"vocab": 257}, cpu_devices=4, steps=STEPS, eval_every=EVERY, watch=WATCH,
        **{"checkpoint": {"every": 8}} | changes,
    )  # fmt: skip
    return [*run, "--layout.accumulate=2"]


def said_by_all(processes: list[Process]) -> str:
    return "\n".join(f"--- process {index}\n{process.output}" for index, process in enumerate(processes))


@pytest.fixture(scope="module")
def unbroken_two(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("unbroken-two")
    processes = start(*write_two(folder), cache=cache)
    assert finish_all(processes) == [0, 0], said_by_all(processes)
    return folder


MOMENTS = [  # what is told, who then gets the signal, which one, whether it comes before there is anything to save
    ("compiling the training step", 0, signal.SIGTERM, True),
    ("step 1/", 0, signal.SIGTERM, False),
    ("slow evaluation", 1, signal.SIGUSR1, False),
    ("slow save", 1, signal.SIGTERM, False),  # step 8, and a late batch behind it, so that the end comes before step 12
    ("slow data wait", 1, signal.SIGUSR1, False),
]


def test_all_go_beyond_their_data_and_evaluate_less_than_a_batch(unbroken_two: Path) -> None:
    """Case D2. That an epoch is complete and the next one in another order: tests/io/test_windows.py."""
    manifests = [unbroken_two / "prepared" / name / "manifest.json" for name in ("train", "held_out")]
    train, held_out = (json.loads(path.read_text()) for path in manifests)
    epoch = train["num_tokens"] // 16
    assert 4 * epoch < STEPS * 8
    assert epoch % 8
    assert held_out["num_tokens"] < 8 * 16
    assert sorted(records(unbroken_two)) == list(range(1, STEPS + 1))
    found = records(unbroken_two, "eval_loss")
    assert sorted(found) == [6, 12, 16]
    assert found[16]["eval_tokens"] == held_out["num_tokens"] - held_out["num_documents"]


def test_signals_to_one_process_at_any_moment_lose_nothing(tmp_path: Path, cache: Path, unbroken_two: Path) -> None:
    """Case S3, in microbatches: in compilation, in a step, an evaluation, a save, a wait for data."""
    run = write_two(tmp_path)
    reached = 0
    for text, victim, number, early in MOMENTS:
        processes = start(*run, cache=cache, program="tests.run.slow")
        processes[victim].wait_for(text)
        processes[victim].signal(number)
        assert finish_all(processes) == [5, 5], f"{text}: {said_by_all(processes)}"
        saved = checkpoint_folder.newest(tmp_path / "run" / "checkpoints", print)
        if early:
            assert saved is None
            continue
        assert saved is not None
        assert saved.step == max(records(tmp_path)) > reached
        assert not [path for path in saved.folder.parent.iterdir() if path.suffix]
        reached = saved.step
        assert re.search(rf"{signal.Signals(number).name}: stopped after step {saved.step} ", processes[0].output)
    processes = start(*run, cache=cache)
    assert finish_all(processes) == [0, 0], said_by_all(processes)
    assert numbers(tmp_path) == numbers(unbroken_two)
    assert sorted(records(tmp_path, "eval_loss")) == [6, 12, 16]


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_process_ends_the_other_and_the_run_goes_on(
    tmp_path: Path, cache: Path, unbroken_two: Path, victim: int
) -> None:
    """Cases K2, S4: process 0 is the one that all others are connected to. Then it goes on with one process."""
    run = write_two(tmp_path)
    processes = start(*run, cache=cache, program="tests.run.slow")
    processes[0].wait_for("step 11/")  # the data of step 13 is late, and the save of step 8 takes its time
    deadline = time.monotonic() + 10
    while not (tmp_path / "run" / "checkpoints" / "step_00000008").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    processes[victim].signal(signal.SIGKILL)
    codes = finish_all(processes)
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] == 7, said_by_all(processes)
    assert f"error: lost process {victim} " in processes[1 - victim].output
    assert "it is gone" in processes[1 - victim].output
    again = start(*run, cache=cache, processes=2 if victim else 1)
    assert set(finish_all(again)) == {0}, said_by_all(again)
    assert "restoring step 8" in again[0].output
    assert re.search(r"goodput \d+\.\d% of .* in 2 starts, [1-9] steps? done again;", again[0].output)
    if victim:
        assert numbers(tmp_path) == numbers(unbroken_two)
    losses = [[record["loss"] for record in records(folder).values()] for folder in (tmp_path, unbroken_two)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)  # CLOSE: another number of processes sums in another order
    assert sorted(records(tmp_path)) == list(range(1, STEPS + 1))


def test_data_that_is_damaged_on_the_way_ends_all_processes(tmp_path: Path, cache: Path) -> None:
    run = write_two(tmp_path, checkpoint={"every": 100})
    processes = start(*run, "--config.steps=100000", "--config.log_every=1", cache=cache)
    processes[0].wait_for("step 3/")
    os.truncate(tmp_path / "prepared" / "train" / "shard-00000.bin", 500)
    assert finish_all(processes) == [2, 2], said_by_all(processes)
    for process in processes:
        assert re.search(r"error: .*shard-00000\.bin: has 500 bytes .* \(asked for by sample \d+\)", process.output)
