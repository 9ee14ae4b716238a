"""What processes tell each other: threads stand for processes, and a dict for the coordination service."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshtrain.errors import InputError, MeshtrainError, PeerError, StorageError
from meshtrain.run.processes import peers as module
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.peers import Peers


class Service:
    """The two calls of JAX's client that are used here, with its kinds of errors."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._changed = threading.Condition()

    def key_value_set(self, key: str, text: str) -> None:
        with self._changed:
            if key in self._texts:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self._texts[key] = text
            self._changed.notify_all()

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._texts, milliseconds / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self._texts[key]


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    service = Service()
    monkeypatch.setattr(module, "_client", lambda: service)
    monkeypatch.setattr(module, "SLACK", 1.0)
    return [Peers(ThisProcess(index, 3, "a:1", f"host{index}", wait=5)) for index in range(3)]


def together(members: list[Peers], work: Callable[[Peers], Any]) -> list[Any]:
    """What `work` returned or raised on each process."""
    ends: list[Any] = [None] * 3

    def run(peers: Peers) -> None:
        try:
            ends[peers.me.index] = work(peers)
        except MeshtrainError as error:
            ends[peers.me.index] = error

    threads = [threading.Thread(target=run, args=(peers,), daemon=True) for peers in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return ends


def test_values_come_to_all_in_order_and_a_question_can_be_asked_again(members: list[Peers]) -> None:
    assert together(members, lambda peers: peers.gather("x", peers.me.index)) == [[0, 1, 2]] * 3
    assert together(members, lambda peers: peers.gather("x", {"again": peers.me.index}))[1][2] == {"again": 2}
    assert together(members, lambda peers: peers.share("y", lambda: peers.me.host)) == ["host0"] * 3
    assert together(members, lambda peers: peers.agree("z", lambda: peers.me.host)) == ["host0", "host1", "host2"]


@pytest.mark.parametrize("odd", [0, 2])
def test_an_error_of_one_is_raised_on_all_with_its_kind_and_its_process(members: list[Peers], odd: int) -> None:
    def work(peers: Peers) -> None:
        if peers.me.index == odd:
            raise StorageError("the disk is full")

    ends = together(members, lambda peers: peers.agree("saving", lambda: work(peers)))
    assert [type(end) for end in ends] == [StorageError] * 3
    assert str(ends[odd]) == "the disk is full"
    assert all("the disk is full" in str(end) for end in ends)
    assert odd == 0 or f"process {odd} of 3 on host{odd}" in str(ends[0])


def test_an_error_of_process_0_is_raised_on_all(members: list[Peers]) -> None:
    def work() -> None:
        raise InputError("the folder is another run's")

    ends = together(members, lambda peers: peers.share("folder", work))
    assert [(type(end), str(end)) for end in ends] == [(InputError, "the folder is another run's")] * 3


def test_a_fault_of_one_is_a_lost_process_to_the_others(members: list[Peers]) -> None:
    def work(peers: Peers) -> int:
        if peers.me.index == 1:
            return 1 // 0
        return 1

    def careful(peers: Peers) -> Any:
        try:
            return peers.agree("x", lambda: work(peers))
        except ZeroDivisionError:
            return "its own fault"

    ends = together(members, careful)
    assert ends[1] == "its own fault"
    for end in (ends[0], ends[2]):
        assert isinstance(end, PeerError)
        assert "process 1 of 3 on host1: ZeroDivisionError" in str(end)


def test_who_does_not_answer_is_named_in_time(members: list[Peers]) -> None:
    begun = time.monotonic()
    ends = together(members[:2], lambda peers: peers.gather("x", 1, seconds=0.5))
    assert time.monotonic() - begun < 5
    assert [type(end) for end in ends[:2]] == [PeerError] * 2
    assert "process 2 of 3 did not answer within 0 s: x" in str(ends[0]) or "process 2 of 3" in str(ends[1])
    assert members[0].get("never", 0.05) is None


def test_process_0_that_does_not_answer_is_named(members: list[Peers]) -> None:
    ends = together(members[1:2], lambda peers: peers.share("x", lambda: 1, seconds=0.2))
    assert "process 0 did not say within 1 s how this went: x" in str(ends[1])


def test_one_process_asks_nobody() -> None:
    alone = Peers(ThisProcess())
    assert alone.share("x", lambda: 1) == 1
    assert alone.agree("x", lambda: 2) == 2
    assert alone.gather("x", 3) == [3]
    with pytest.raises(InputError, match="mine"):
        alone.agree("x", lambda: (_ for _ in ()).throw(InputError("mine")))
