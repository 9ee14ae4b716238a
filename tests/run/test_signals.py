"""The agreement on where to end, for every order in which processes can come to their points that their steps allow."""

import random
from pathlib import Path

import pytest

from meshtrain.errors import Exit, PeerError
from meshtrain.run import signals
from meshtrain.run.signals import StopRequest
from tests.run.runs import Process


class Board:
    """The texts that all processes see."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def post(self, key: str, text: str) -> None:
        self.texts[key] = text

    def look(self, key: str) -> str | None:
        return self.texts.get(key)


def ends(seed: int, coupled: bool = True) -> list[int]:
    """The points at which three processes end, in a random order of events, with a signal to one of them.

    coupled: a process comes to point n when all have taken part in what follows point n - 2: so the loop waits.
    """
    chance, board = random.Random(seed), Board()
    stops = [StopRequest() for _ in range(3)]
    for index, stop in enumerate(stops):
        stop.share(board, index == 0)
        stop.begin()
    ended: dict[int, int] = {}
    when, victim, posted = chance.randint(0, 60), chance.randrange(3), False
    weights = [chance.choice([1, 5, 50]) for _ in stops]
    for event in range(2000):
        if event >= when and not posted and chance.random() < 0.5:
            stops[victim].name, posted = "SIGTERM", True
            stops[victim]._tell()
        free = [
            index
            for index, stop in enumerate(stops)
            if index not in ended and (not coupled or all(other.point >= stop.point - 1 for other in stops))
        ]
        assert free or len(ended) == 3, "nobody can go on, and not all have ended"
        if not free:
            return [ended[index] for index in range(3)]
        index = chance.choices(free, [weights[index] for index in free])[0]
        if stops[index].now():
            ended[index] = stops[index].point
    raise AssertionError("no end")


def test_all_end_at_the_same_point_and_none_waits_for_ever() -> None:
    for seed in range(300):
        assert len(set(ends(seed))) == 1, f"seed {seed}"


def test_one_point_less_ahead_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "AHEAD", 1)
    wrong = 0
    for seed in range(300):
        try:
            wrong += len(set(ends(seed))) > 1
        except (AssertionError, PeerError):
            wrong += 1
    assert wrong > 10


def test_processes_that_do_not_wait_for_each_other_are_told() -> None:
    """Where a layout lets whole processes run ahead, the one that is too far says so instead of ending elsewhere."""
    seen = set()
    for seed in range(50):
        try:
            seen.add(str(len(set(ends(seed, coupled=False)))))
        except PeerError as error:
            seen.add(str(error).rpartition(": ")[2])
    assert len(seen) == 2
    assert "1" in seen
    assert "the layout lets processes train without each other" in "".join(seen)


def test_before_training_only_the_first_process_decides_and_only_until_it_begins() -> None:
    board = Board()
    first, other = StopRequest(), StopRequest()
    first.share(board, True)
    other.share(board, False)
    assert first.before_training() is None
    other.name = "SIGUSR1"
    other._tell()
    assert other.before_training() is None
    assert first.before_training() == "SIGUSR1 before training began: nothing to save"
    first.begin()
    assert first.before_training() is None


@pytest.mark.parametrize("moment", ["{}", "gc.callbacks.append(lambda *_: {}); gc.collect()"])
def test_a_signal_while_the_program_loads_ends_it_whatever_it_does(tmp_path: Path, moment: str) -> None:
    """In the middle of a config file, and where an exception would be dropped: in the collection of garbage."""
    line = moment.format("os.kill(os.getpid(), signal.SIGTERM)")
    (tmp_path / "run.py").write_text(f"import gc, os, signal\n\ndef get_config():\n    {line}\n    return {{}}\n")
    process = Process("--config", str(tmp_path / "run.py"))
    assert process.finish() == Exit.PREEMPTED
    assert process.output.strip() == "SIGTERM before training began: nothing to save"
