"""What a person sees: phases with times also when they overlap, and lines of steps at the right steps."""

import io
import re
import threading

import pytest

from meshtrain.run.progress import Progress, format_seconds


def step_record(step: int, skipped: int = 0) -> dict[str, float]:
    return {
        "step": step,
        "loss": 2.5,
        "grad_norm": 1.0,
        "learning_rate": 3e-4,
        "tokens_per_s": 12345.6,
        "skipped": skipped,
    }


def test_lines_at_the_first_every_nth_and_the_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(num_steps=7, log_every=3)
    progress.start(0)
    for step in range(1, 8):
        progress.step(step_record(step, skipped=step == 5), seconds_left=7 - step)
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1/7", "3/7", "step", "6/7", "7/7"]
    assert lines[0] == "step 1/7  loss 2.5000  grad_norm 1.000  lr 3.00e-04  12,346 tokens/s  0:06 left"
    assert lines[2].startswith("skipped step 5:")


def test_what_gpus_tell_stands_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(1, 1).step(step_record(1) | {"mfu": 0.4123, "peak_memory_gb": 67.94}, seconds_left=None)
    assert "12,346 tokens/s  mfu 41.2%  peak 67.9 GB  ? left" in capsys.readouterr().out


def test_phases_end_with_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(1, 1)
    with progress.phase("one"):
        pass
    with progress.phase("outer"), progress.phase("inner"):
        progress.say("in between")
    with pytest.raises(ValueError, match="x"), progress.phase("failing"):
        raise ValueError("x")
    progress.say("after")
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"one \.\.\. \d\.\d s\nouter \.\.\. \ninner \.\.\. \nin between\ninner: \d\.\d s\nouter: \d\.\d s\n"
        r"failing \.\.\. \nafter\n",
        out,
    ), out


def test_overlapping_phases_of_threads_never_mix_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(1, 1)
    threads = [threading.Thread(target=enter, args=(progress, i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    progress.close()
    out = capsys.readouterr().out
    for i in range(3):
        for j in range(30):
            assert len(re.findall(rf"phase {i}\.{j}(?: \.\.\.)?:? \d\.\d s", out)) == 1


def enter(progress: Progress, number: int) -> None:
    for j in range(30):
        with progress.phase(f"phase {number}.{j}"):
            pass


def test_a_closed_pipe_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    progress = Progress(2, 1)
    with progress.phase("one"):
        progress.say("two")
    progress.step(step_record(1), None)
    progress.close()


def test_times_are_readable() -> None:
    assert [format_seconds(s) for s in (None, 0, 59.6, 3600, 3723)] == ["?", "0:00", "1:00", "1:00:00", "1:02:03"]
