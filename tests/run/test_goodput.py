"""Where a run's time went: sums over starts, steps that were lost, and the account of a start that was killed."""

import json
import time
from pathlib import Path

import pytest

from meshtrain.run.goodput import Goodput, Start, summarise
from meshtrain.run.watch import COMPILE, DATA, SAVE, START, STEP


def test_the_sums_over_starts() -> None:
    """Two starts by hand: 100 s with 60 s of steps, 10 s of them lost; 20 s nothing; 50 s with 40 s of steps."""
    first = Start(0, 100, 0, 60, {START: 20.0, COMPILE: 10.0, STEP: 50.0, DATA: 10.0, SAVE: 10.0})
    second = Start(120, 170, 50, 90, {START: 10.0, STEP: 40.0}, lost_steps=10, lost_seconds=10.0)
    found = summarise([first, second])
    assert found["total"] == pytest.approx(170)
    assert found["share"] == pytest.approx(90 / 170)
    assert found["seconds"]["between starts"] == 20
    assert found["seconds"]["steps done again"] == 10
    assert found["lost_steps"] == 10
    first.done = True  # it had done what it was asked for: the time until somebody wanted more is nobody's loss
    assert summarise([first, second])["total"] == pytest.approx(150)


def test_a_start_counts_what_it_does_again(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 1.0, "seconds": 2.0} for step in range(1, 8)] + [{"step": 6, "eval_loss": 1.0}]
    killed = Goodput(tmp_path, 0)
    killed.note(7, {START: 3.0, STEP: 14.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = Goodput(tmp_path, 5)
    again.note(9, {START: 1.0, STEP: 8.0}, done=True, force=True)
    found = again.summary()
    assert (found["starts"], found["lost_steps"]) == (2, 2)
    assert found["trained"] == pytest.approx(14 + 8 - 2 * 2.0)
    assert "in 2 starts, 2 steps done again; the rest: start 4.0 s" in again.text()


def test_a_damaged_account_is_begun_anew_and_a_process_that_does_not_write_leaves_it_alone(tmp_path: Path) -> None:
    (tmp_path / "goodput.json").write_text("{")
    other = Goodput(tmp_path, 0, writes=False)
    other.note(1, {STEP: 1.0}, force=True)
    assert (tmp_path / "goodput.json").read_text() == "{"
    mine = Goodput(tmp_path, 0)
    mine.note(1, {STEP: 1.0}, force=True)
    assert len(json.loads((tmp_path / "goodput.json").read_text())) == 1


ODD = ['{"began": 1}', '[{"began": "x"}]', "[1]", '[{"began": 0, "seen": 1, "first": 0, "step": 1, "seconds": [1]}]',
       "[" * 100_000, '[{"began": 0, "seen": 1, "first": 0, "step": 1, "of_a_newer_version": 1}]']  # fmt: skip


@pytest.mark.parametrize("content", ODD, ids=lambda text: text[:30])
def test_an_account_that_cannot_be_read_is_kept_beside_the_new_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "goodput.json").write_text(content)
    Goodput(tmp_path, 0, writes=False)
    mine = Goodput(tmp_path, 0)
    mine.note(1, {STEP: 1.0}, force=True)
    assert "1 start" in mine.text()
    assert (tmp_path / "goodput.json.unread").read_text() == content


def test_a_record_without_a_number_of_seconds_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "seconds": "x"}\n{"step": 3, "seconds": 2}\n')
    assert Goodput(tmp_path, 1).starts[-1].lost_seconds == 2


def test_a_clock_that_is_set_back_stops_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be written again is told by a clock that only goes forward."""
    account = Goodput(tmp_path, 0)
    account.note(1, {STEP: 1.0})
    now = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    account.note(2, {STEP: 2.0})
    assert json.loads((tmp_path / "goodput.json").read_text())[-1]["step"] == 2
