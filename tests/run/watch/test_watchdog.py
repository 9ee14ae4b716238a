"""Pretended runs of real processes: whoever hangs, dies, stops or fails, all end in time with the code for it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshtrain.errors import Exit
from meshtrain.run.watch.heartbeat import SIZE, Beat, Signs, Verdict, _overwrite
from tests.run.watch.member import CONFIG

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


class Members:
    """The processes of one pretended run."""

    def __init__(self, folder: Path, *behaviours: str) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "tests.run.watch.member", str(folder)]
        self.children = [
            subprocess.Popen(
                [*command, str(index), str(len(behaviours)), behaviour],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
            )
            for index, behaviour in enumerate(behaviours)
        ]  # fmt: skip
        self.outputs = ["" for _ in behaviours]

    def finish(self, *processes: int, seconds: float = 45) -> list[int]:
        """Waits for the end of some of them (or all); their exit codes."""
        codes = []
        for index in processes or range(len(self.children)):
            self.outputs[index], _ = self.children[index].communicate(timeout=seconds)
            codes.append(self.children[index].returncode)
        return codes

    def close(self) -> None:
        for child in self.children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


@pytest.fixture
def members(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Members]:
    run = Members(tmp_path, *request.param)
    yield run
    run.close()


def run_of(*behaviours: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("members", [behaviours], indirect=True, ids=[", ".join(behaviours)])


@run_of("works", "works")
def test_nothing_happens_to_a_run_that_works(members: Members) -> None:
    assert members.finish() == [0, 0]
    assert members.outputs[0].split("\n")[-2] == "step 39"


@run_of("waits for data")
def test_a_hang_of_one_process_ends_it_with_its_stacks_and_its_place(members: Members) -> None:
    began = time.monotonic()
    assert members.finish() == [Exit.HANG]
    assert time.monotonic() - began < CONFIG.floor + 15
    output = members.outputs[0]
    assert "error: no progress: data wait for" in output
    assert "step 9, data wait" in output
    assert "member.py" in output  # the stack of the main thread
    assert "in main" in (members.folder / ".watch" / "0001" / "stacks-00000.txt").read_text()


@run_of("works", "works", "waits for data")
def test_the_process_that_the_others_wait_for_is_named_by_all(members: Members) -> None:
    assert members.finish() == [Exit.HANG] * 3
    for index, output in enumerate(members.outputs):
        assert "behind: process 2" in output or "step 9, data wait for" in output, output
        assert f"stacks of process {index}" in output
    assert len({output.rpartition("error: ")[2] for output in members.outputs}) == 1


@pytest.mark.parametrize("members", [("works", "is killed"), ("is killed", "works")], indirect=True, ids=str)
def test_a_killed_process_is_named_and_the_others_end(members: Members) -> None:
    codes = members.finish()
    victim = codes.index(-signal.SIGKILL)
    assert codes[1 - victim] == Exit.PEER_LOST
    assert f"error: lost process {victim} " in members.outputs[1 - victim]
    assert "it is gone" in members.outputs[1 - victim]
    assert "stacks of process" in members.outputs[1 - victim]


@run_of("works", "stops")
def test_a_stopped_process_is_named_and_ends_with_the_same_verdict_once_it_goes_on(members: Members) -> None:
    assert members.finish(0) == [Exit.PEER_LOST]
    assert "lost process 1 " in members.outputs[0]
    assert "stopped by a signal" in members.outputs[0]
    members.children[1].send_signal(signal.SIGCONT)
    assert members.finish(1) == [Exit.PEER_LOST]


@run_of("works", "works", "has bad data")
def test_an_error_of_one_process_ends_all_with_its_code_and_text(members: Members) -> None:
    assert members.finish() == [Exit.BAD_INPUT] * 3
    for output in members.outputs:
        assert "error: shard-00000.bin: token id 999 (asked for by sample 77) (process 2)" in output


@run_of("works", "has a fault")
def test_a_fault_of_one_process_ends_all(members: Members) -> None:
    assert members.finish() == [Exit.FAULT] * 2
    assert "error: ValueError: a fault (process 1)" in members.outputs[0]
    assert "Traceback" in members.outputs[1]


@run_of("works", "aborts")
def test_an_abort_of_the_runtime_has_a_documented_code(members: Members) -> None:
    """JAX's runtime aborts a process where process 0 is gone; here nobody is gone."""
    assert members.finish() == [Exit.FAULT] * 2
    assert "the runtime aborted this process (process 1)" in members.outputs[0]


def test_a_process_that_is_cut_off_from_the_folder_is_lost(tmp_path: Path) -> None:
    """It lives and computes, but its signs do not arrive: its folder is another one."""
    other = tmp_path / "other"
    other.mkdir()
    members = Members(tmp_path, "works", "works")
    members.children[1].kill()
    members.children[1].wait()
    beat = json.dumps({
        "process": 1, "beat": 3, "step": 4, "phase": "step", "seconds": 0.1, "host": "far", "machine": "far", "pid": 1,
    })  # fmt: skip
    while not (tmp_path / ".watch" / "0001").is_dir():
        assert members.children[0].poll() is None
        time.sleep(0.05)
    (tmp_path / ".watch" / "0001" / "process-00001.json").write_text(beat)
    assert members.finish(0) == [Exit.PEER_LOST]
    assert "lost process 1 (far, pid 1): step 4" in members.outputs[0]
    assert "no sign of life for" in members.outputs[0]
    members.close()


def test_a_full_disk_silences_nobody(tmp_path: Path) -> None:
    """No file may grow: beats and the verdict are written into the room that they have."""
    signs = Signs(tmp_path, "0001")
    first = Beat(1, 1, 1, "step", 0.0, "host", "machine", 1)
    signs.reserve(1)
    assert signs.write(first)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, before[1]))
    try:
        assert not _overwrite(tmp_path / "other", {"long": "x" * SIZE})
        assert signs.write(replace(first, beat=2, phase="evaluation"))
        verdict = signs.publish(Verdict(4, "no room", 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
    assert signs.read(1) == replace(first, beat=2, phase="evaluation")
    assert signs.verdict() == verdict == Verdict(4, "no room", 1)
    signs.reserve(2)
    assert signs.publish(Verdict(7, "lost", 2)) == verdict  # the first one holds


def test_a_process_that_was_stopped_as_a_whole_goes_on(tmp_path: Path) -> None:
    """Ctrl-Z for longer than any budget is no hang."""
    members = Members(tmp_path, "works")
    assert members.children[0].stdout is not None
    for line in members.children[0].stdout:
        if line == "step 5\n":
            break
    os.kill(members.children[0].pid, signal.SIGSTOP)
    time.sleep(10)
    os.kill(members.children[0].pid, signal.SIGCONT)
    assert members.finish() == [0]
