"""Phases as other threads see them, and who may be told apart by them."""

import os
import time
from pathlib import Path

import pytest

from meshtrain.run.watch import COMPILE, STEP, WatchConfig
from meshtrain.run.watch.budget import Budgets
from meshtrain.run.watch.heartbeat import Beat, Pulse, Signs, Verdict, machine
from meshtrain.run.watch.phases import Phases


class Seen(Phases):
    """What another thread can read after each single store."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if "now" in self.__dict__:
            SEEN.append(self.now)


SEEN: list[tuple[str, float]] = []


def test_a_name_never_stands_beside_the_time_of_another_phase() -> None:
    """A step that seems to have begun when the compilation did would look like a hang."""
    phases = Seen(COMPILE, Budgets(WatchConfig()))
    begun = phases.now[1]
    phases.enter(STEP)
    assert {(name, since == begun) for name, since in SEEN} == {(COMPILE, True), (STEP, False)}


def test_a_pause_moves_no_phase_into_the_future() -> None:
    phases = Phases(STEP, Budgets(WatchConfig()))
    phases.pause(1000.0)  # it began after the pause
    assert phases.now[1] <= time.monotonic()


def test_the_first_verdict_holds_also_against_another_thread_of_who_gave_it(tmp_path: Path) -> None:
    signs = Signs(tmp_path, "0001")
    first = signs.publish(Verdict(6, "a hang", 1))
    assert signs.publish(Verdict(1, "a fault", 1)) == first == signs.verdict() == Verdict(6, "a hang", 1)


def test_a_file_system_without_links_has_a_verdict_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    signs = Signs(tmp_path, "0001")
    first = signs.publish(Verdict(6, "a hang", 1))
    assert signs.publish(Verdict(1, "a fault", 0)) == first


def test_a_process_of_another_machine_of_the_same_name_is_not_taken_for_gone(tmp_path: Path) -> None:
    """Its number is nobody's here; hosts may all be called localhost, and each kernel has a first process namespace."""
    name, boot, namespace = machine().split()
    signs, nobody = Signs(tmp_path, "0001"), 2**22 + 1
    for other, lost in ((machine(), True), (f"{name} {boot[::-1]} {namespace}", False)):
        signs.write(Beat(1, 1, 1, "step", 0.0, name, other, nobody))
        assert bool(Pulse(signs, 0, 2, patience=60).look(True, 1.0)) == lost
