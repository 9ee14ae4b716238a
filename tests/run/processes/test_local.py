"""Local processes: their lines, their end, the signals that are passed on; small programs in place of the trainer."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from meshtrain import launch
from meshtrain.run.processes.local import LocalProcesses, commands
from tests.run.runs import ROOT


def run(*programs: str) -> int:
    return LocalProcesses([[sys.executable, "-uc", program] for program in programs]).run()


def test_lines_are_printed_behind_the_number_of_who_said_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("print('one'); print('two')", "import sys; print('three', file=sys.stderr)") == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("[0]")] == ["[0] one", "[0] two"]
    assert "[1] three" in lines
    assert sum(line.startswith("[launch] process") for line in lines) == 2


def test_what_the_exchange_prints_into_lines_is_taken_out(capfd: pytest.CaptureFixture[str]) -> None:
    gloo = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    assert run(f"print('saving ... ', end=''); print('{gloo}'); print('{gloo}'); print('0.5 s'); print('end')") == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("[0]")]
    assert lines == ["[0] saving ... 0.5 s", "[0] end"]


def test_the_first_failure_ends_all_with_its_reason_and_code(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshtrain.run.processes.local.GRACE", 0.5)
    begun = time.monotonic()
    failing = "import sys, time; time.sleep(0.3); print('error: no such file'); sys.exit(4)"
    assert run("import time; time.sleep(60)", failing, "pass") == 4
    assert time.monotonic() - begun < 20
    said = capfd.readouterr().out
    assert "[launch] process 1 ended with exit code 4: error: no such file" in said
    assert "[launch] process 0 is killed, since process 1 has failed" in said


def test_a_process_that_a_signal_ended_counts_as_128_and_its_number(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == 137
    assert "[launch] process 0 ended with signal SIGKILL" in capfd.readouterr().out


def test_signals_are_passed_on_to_all(capfd: pytest.CaptureFixture[str]) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: (print('told'), sys.exit(5)))\n"
        "time.sleep(60)"
    )
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    assert run(program, program) == 5
    lines = capfd.readouterr().out.splitlines()
    assert {"[0] told", "[1] told"} <= set(lines)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_nothing_outlives_a_start_that_is_killed() -> None:
    """kill -9 leaves no time to end anybody."""
    program = "import os, time; print('child', os.getpid(), flush=True); time.sleep(60)"
    start = f"""
import sys
from meshtrain.run.processes.local import LocalProcesses
LocalProcesses([[sys.executable, "-c", {program!r}]] * 2).run()
"""
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        children: list[psutil.Process] = []
        while len(children) < 2:
            words = parent.stdout.readline().split()
            children += [psutil.Process(int(words[2]))] if words[1] == "child" else []
        parent.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
        for process in alive:
            process.kill()
    assert not alive


def test_a_dry_run_prints_each_command_and_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--processes", "2", "--devices=4", "--port", "1234", "--dry-run", "--", "--config", "a b.py"]
    assert launch.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = commands(2, 4, 1234, ["--config", "a b.py"])
    assert lines == [f"[{index}] {shlex.join(command)}" for index, command in enumerate(expected)]
    assert shlex.split(lines[1])[4:] == [
        "--config", "a b.py", "--config.cpu_devices=8", "--coordinator", "127.0.0.1:1234", "--processes", "2",
        "--process", "1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--processes", "2"], "behind `--`"),
        (["--", "--config", "x.py"], "--processes"),
        (["--processes", "0", "--", "--config", "x.py"], "whole number of at least 1"),
        (["--processes", "9" * 5000, "--", "--config", "x.py"], "(5,000 characters) is not a whole number"),
        (["--processes", "100000000", "--", "--config", "x.py"], "more than 1024 are no rehearsal"),
        (["--processes", "2", "--config", "x.py"], "not an argument of launch"),
        (["--processes", "2", "--", "--config", "x.py", "--config.cpu_devices=4"], "write --devices"),
    ],
)
def test_bad_arguments_are_told(argv: Sequence[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(argv) == 2
    assert words in capsys.readouterr().err


def test_help_is_the_docstring(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert launch.main(["--help"]) == 0
    assert "a rehearsal of many hosts" in capsys.readouterr().out
