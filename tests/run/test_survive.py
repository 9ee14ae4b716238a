"""Two real processes and whatever happens to one of them: all end alike, and the run goes on as if it had not."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from meshtrain.io import checkpoint_folder
from tests.run.corpus import prepare_bytes
from tests.run.hosts import finish_all, start
from tests.run.runs import MODEL, Process, numbers, records, write_run

pytestmark = pytest.mark.slow

STEPS = 12
WATCH = {"floor": 60, "lost": 8, "start": 240}


def write_two(folder: Path, **changes: Any) -> list[str]:
    """A run of two processes with two devices each, that is evaluated and saved on its way."""
    data = prepare_bytes(folder)
    return write_run(
        folder, data=data, model=MODEL | {"vocab": 257}, cpu_devices=4, steps=STEPS, eval_every=4, watch=WATCH,
        **{"checkpoint": {"every": 5}} | changes,
    )  # fmt: skip


def said_by_all(processes: list[Process]) -> str:
    return "\n".join(f"--- process {index}\n{process.output}" for index, process in enumerate(processes))


@pytest.fixture(scope="module")
def unbroken_two(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("unbroken-two")
    processes = start(*write_two(folder), cache=cache)
    assert finish_all(processes) == [0, 0], said_by_all(processes)
    return folder


def test_signals_to_one_process_at_any_moment_lose_nothing(tmp_path: Path, cache: Path, unbroken_two: Path) -> None:
    """Case S3. The same run meets a signal in compilation, in a step, at an evaluation and while it saves."""
    run = write_two(tmp_path)
    moments = [
        ("compiling the training step", 1, signal.SIGTERM),
        ("step 2/", 1, signal.SIGTERM),
        ("held-out loss after step 4", 0, signal.SIGUSR1),
        ("step 10/", 1, signal.SIGUSR1),
    ]
    reached = 0
    for text, victim, number in moments:
        processes = start(*run, cache=cache)
        processes[0].wait_for(text)
        processes[victim].signal(number)
        codes = finish_all(processes)
        assert codes == [5, 5] or (codes == [0, 0] and text.startswith("step 10")), said_by_all(processes)
        saved = checkpoint_folder.newest(tmp_path / "run" / "checkpoints", print)
        if "compiling" in text:
            assert saved is None
            continue
        assert saved is not None
        assert saved.step == max(records(tmp_path)) > reached
        reached = saved.step
        if codes == [5, 5]:
            assert re.search(rf"{signal.Signals(number).name}: stopped after step {saved.step} ", processes[0].output)
    processes = start(*run, cache=cache)
    assert finish_all(processes) == [0, 0], said_by_all(processes)
    assert numbers(tmp_path) == numbers(unbroken_two)
    assert sorted(records(tmp_path, "eval_loss")) == [4, 8, 12]


@pytest.mark.parametrize("victim", [0, 1])
def test_kill_9_of_one_process_ends_the_other_and_the_run_goes_on(
    tmp_path: Path, cache: Path, unbroken_two: Path, victim: int
) -> None:
    """Cases K2, S4: process 0 is the one that all others are connected to. Then it goes on with one process."""
    run = write_two(tmp_path)
    processes = start(*run, cache=cache)
    processes[0].wait_for("step 7/")
    processes[victim].signal(signal.SIGKILL)
    codes = finish_all(processes)
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] == 7, said_by_all(processes)
    assert f"error: lost process {victim} " in processes[1 - victim].output
    assert "it is gone" in processes[1 - victim].output
    again = start(*run, cache=cache, processes=2 if victim else 1)
    assert set(finish_all(again)) == {0}, said_by_all(again)
    assert "restoring step 5" in again[0].output
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
    os.truncate(tmp_path / "prepared" / "train" / "shard-00000.bin", 1000)
    assert finish_all(processes) == [2, 2], said_by_all(processes)
    for process in processes:
        assert re.search(r"error: .*shard-00000\.bin: has 1000 bytes .* \(asked for by sample \d+\)", process.output)
