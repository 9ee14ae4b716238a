"""Claims on a run's folder where the file system has no locks, or locks that one host alone sees."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshtrain.errors import InputError
from meshtrain.run import claim
from meshtrain.run.claim import LOCK, Claim
from meshtrain.run.watch import heartbeat
from meshtrain.run.watch.heartbeat import Beat, Signs

ROOT = Path(__file__).parents[2]


def nothing(file: int, operation: int) -> None:
    """A lock that another host does not see."""


def none(file: int, operation: int) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.fixture(params=[nothing, none], ids=["locks of one host", "no locks"])
def weak(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A file system on which two processes can hold one lock."""
    monkeypatch.setattr(fcntl, "flock", request.param)
    monkeypatch.setattr(heartbeat, "LOOK", 1.0)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process is on another machine."""
    monkeypatch.setattr(claim, "machine", lambda: "another machine")


def living(folder: Path) -> "subprocess.Popen[bytes]":
    """A process that gives signs of life in a run's folder until it is killed."""
    program = (
        "import pathlib, sys, time; from meshtrain.run.watch.heartbeat import Beat, Signs; n = 0\n"
        "signs = Signs(pathlib.Path(sys.argv[1]), '0001')\n"
        "while True: n += 1; signs.write(Beat(0, n, 1, 'step', 0.0, 'h', 'm', 1)); time.sleep(0.1)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=ROOT)
    while not list(folder.glob(".watch/*/process-*")):
        assert child.poll() is None
        time.sleep(0.02)
    return child


@pytest.mark.usefixtures("weak")
def test_who_lives_on_another_machine_is_not_disturbed_and_who_died_there_is_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Claim(tmp_path)
    other = living(tmp_path)
    elsewhere(monkeypatch)
    try:
        with pytest.raises(InputError, match=rf"process {os.getpid()} on .* is training in this folder"):
            Claim(tmp_path)
        first.check()  # it has not been touched
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    second = Claim(tmp_path)
    second.check()
    first.release()
    second.release()


@pytest.mark.usefixtures("weak")
def test_of_two_that_come_at_the_same_moment_one_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both look, both find nobody, both write."""
    (tmp_path / LOCK).touch()
    first = Claim(tmp_path)
    (tmp_path / LOCK).write_text("")  # what the second one has read before the first one wrote
    elsewhere(monkeypatch)
    second = Claim(tmp_path)
    second.check()
    with pytest.raises(InputError, match="is training in this folder"):
        first.check()
    first.release()
    second.release()


def test_after_a_good_end_nobody_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Claim(tmp_path).release()
    monkeypatch.setattr(claim, "living", lambda folder: pytest.fail("nobody holds it"))
    elsewhere(monkeypatch)
    Claim(tmp_path).release()


def test_a_start_that_was_done_or_stands_still_does_not_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "LOOK", 0.3)
    assert not heartbeat.living(tmp_path)
    Signs(tmp_path, "0001").write(Beat(0, 7, 1, "step", 0.0, "h", "m", 1))
    assert not heartbeat.living(tmp_path)
