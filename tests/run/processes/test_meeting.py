"""Case S2 without JAX: processes meet in any order, within a time, or everybody hears who is missing or different."""

import json
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from meshtrain.errors import InputError, MeshtrainError, PeerError
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.meeting import GREETING, _read_card, free_port, meet, odd_ones
from tests.run.hosts import loopback

FACTS = {"code": "1", "config.steps": 8}


def member(
    index: int, count: int, port: int, wait: float = 20, host: str | None = None, address: str = "127.0.0.1"
) -> ThisProcess:
    return ThisProcess(
        index, count, f"{address}:{port}", host or f"host{index}", wait=wait, sources={"coordinator": "--coordinator"}
    )


def together(works: list[Callable[[], Any]], delays: list[float] | None = None) -> list[MeshtrainError | None]:
    """Runs each in a thread of its own; how each ended. All must end within 30 s."""
    ends: list[MeshtrainError | None] = [None] * len(works)

    def run(index: int) -> None:
        time.sleep((delays or [0.0] * len(works))[index])
        try:
            works[index]()
        except MeshtrainError as error:
            ends[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return ends


def meeting(members: list[ThisProcess], facts: list[dict[str, Any]] | None = None) -> list[Callable[[], Any]]:
    given = facts or [FACTS] * len(members)
    return [partial(meet, me, card) for me, card in zip(members, given, strict=True)]


@pytest.mark.parametrize("delays", [[0, 0.7, 0.2], [0.7, 0, 0]])
def test_processes_meet_in_either_order(delays: list[float]) -> None:
    port = free_port()
    members = [member(i, 3, port, address=loopback()) for i in range(3)]
    assert together(meeting(members), delays) == [None, None, None]


def test_a_hundred_processes_meet() -> None:
    port = free_port()
    assert together(meeting([member(i, 100, port) for i in range(100)])) == [None] * 100


def test_who_is_missing_is_told_to_all_who_came() -> None:
    port = free_port()
    begun = time.monotonic()
    ends = together(meeting([member(i, 5, port, wait=1.5) for i in (0, 2, 4)]))
    assert time.monotonic() - begun < 10
    for end in ends:
        assert isinstance(end, PeerError)
        assert "processes 1, 3 of 5 did not come to 127.0.0.1" in str(end)
        assert "process 2 on host2" in str(end)
        assert end.exit_code == 7


def test_a_wrong_port_says_so_on_both_sides() -> None:
    first, second = free_port(), free_port()
    ends = together(meeting([member(0, 2, first, wait=1), member(1, 2, second, wait=1)]))
    assert "process 1 of 2 did not come" in str(ends[0])
    assert f"process 1 of 2 on host1 waited 1 s for process 0 at 127.0.0.1:{second} (--coordinator)" in str(ends[1])
    assert "nothing answers there" in str(ends[1])


def test_a_port_in_use_is_bad_input_at_once() -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        begun = time.monotonic()
        with pytest.raises(InputError, match=rf"cannot listen on port {port} of host0.*another port would work"):
            meet(member(0, 2, port), FACTS)
        assert time.monotonic() - begun < 1


def test_an_unknown_host_is_named() -> None:
    me = ThisProcess(1, 2, "no-such-host.invalid:1", "host1", wait=0.5)
    with pytest.raises(PeerError, match=r"the name no-such-host\.invalid is not known here"):
        meet(me, FACTS)


def test_a_stranger_at_the_port_is_not_taken_for_process_0() -> None:
    with socket.create_server(("", 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(InputError, match="something that is not a meshtrain process answers there"):
            meet(member(1, 2, stranger.getsockname()[1], wait=5), FACTS)


def test_a_stranger_who_comes_does_not_count() -> None:
    port = free_port()

    def stranger() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")

    ends = together([*meeting([member(0, 2, port), member(1, 2, port)]), stranger], [0, 0.8, 0.4])
    assert ends == [None, None, None]


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_odd_host_is_named_on_all(odd: int) -> None:
    port = free_port()
    facts = [FACTS | ({"config.steps": 9} if index == odd else {}) for index in range(3)]
    ends = together(meeting([member(i, 3, port) for i in range(3)], facts))
    for end in ends:
        assert isinstance(end, InputError)
        assert str(end).startswith("config.steps: ")
        assert f"2 of 3 have 8, but process {odd} on host{odd} has 9" in str(end)


def test_two_with_one_number_and_two_counts_are_told() -> None:
    port = free_port()
    twins = [member(0, 3, port), member(1, 3, port), member(1, 3, port, host="twin")]
    ends = together(meeting(twins), [0, 0, 0.4])
    assert all("two processes say that they are process 1" in str(end) for end in ends)
    port = free_port()
    ends = together(meeting([member(0, 3, port), member(1, 2, port)]))
    assert all("expects 3 processes, but process 1 on host1 was told of 2" in str(end) for end in ends)


@pytest.mark.parametrize("again", [0.8, 1.6])
def test_a_process_that_is_started_again_is_no_twin(again: float) -> None:
    """And is waited for, where all others have come before its next start."""
    port = free_port()
    card = {"is": GREETING, "process": 1, "count": 3, "host": "host1", "facts": FACTS}

    def ends_at_once() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(json.dumps(card).encode() + b"\n")

    ends = together([*meeting([member(i, 3, port) for i in range(3)]), ends_at_once], [0, again, 1.0, 0.4])
    assert ends == [None] * 4


def test_what_is_said_may_be_long() -> None:
    """A run may name thousands of paths."""
    port = free_port()
    facts = FACTS | {"config.data.paths": [f"/a/long/path/{number:050d}" for number in range(3000)]}
    assert together(meeting([member(0, 2, port), member(1, 2, port)], [facts, facts])) == [None, None]


@pytest.mark.parametrize("card", [b"[" * 5000, b'{"is": "meshtrain meeting 1", "process": "x"}'])
def test_a_card_that_is_none_is_dropped(card: bytes) -> None:
    assert _read_card(card) is None


def test_without_a_difference_nobody_is_odd() -> None:
    cards = [{"process": i, "host": "h", "facts": {"a": 1, "b": [1, 2]}} for i in range(3)]
    assert odd_ones(cards) is None
    assert json.loads(json.dumps(cards)) == cards
