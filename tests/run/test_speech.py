"""Real processes whose standard output is full, closed or cannot write a name: their work is done all the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.runs import ROOT

DOOR = (
    "import sys; from meshtrain.run.flags import exit_code; sys.exit(exit_code(lambda argv: print('x' * 9) or 0, []))"
)
SAYS = "from meshtrain.run.speech import *; open_mouth(); print(say('a') and say('b'), file=sys.stderr); fall_silent()"
LAUNCH = (
    "import sys; from meshtrain.run.processes.local import LocalProcesses\n"
    "sys.exit(LocalProcesses([[sys.executable, '-c', 'print(9 * 99999 * chr(120) + chr(10))']] * 2).run())"
)


def ended(program: str, stdout: int) -> tuple[int, str]:
    """(exit code, standard error) of a program that writes to this descriptor."""
    command = [sys.executable, "-c", f"import sys; {program}"]
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False)
    return done.returncode, done.stderr


@pytest.fixture(params=["full", "closed"])
def deaf(request: pytest.FixtureRequest) -> int:
    """A standard output that takes nothing."""
    if request.param == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def test_what_cannot_be_said_ends_nothing(deaf: int) -> None:
    assert ended(SAYS, deaf) == (0, "False\n")
    os.close(deaf)


def test_launch_hears_its_processes_to_their_end(deaf: int) -> None:
    """They would wait for ever for somebody to read what they say."""
    assert ended(LAUNCH, deaf) == (0, "")
    os.close(deaf)


def test_a_report_that_nobody_can_read_is_told_by_the_exit_code() -> None:
    with open("/dev/full", "w") as full:
        assert ended(DOOR, full.fileno()) == (4, "error: standard output cannot be written: No space left on device.\n")
    reader, writer = os.pipe()
    os.close(reader)
    assert ended(DOOR, writer) == (0, "")  # somebody has read enough
    os.close(writer)


def test_a_name_that_is_no_utf8_is_said_with_escapes(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        assert ended("from meshtrain.run.speech import *; open_mouth(); say('a\\udcffb')", out.fileno()) == (0, "")
    assert (tmp_path / "out").read_text() == "a\\udcffb\n"
