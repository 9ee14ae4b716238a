"""The slowest process is named with what it waits for, and nobody where all are alike."""

import pytest

from meshtrain.run.watch.heartbeat import Beat
from meshtrain.run.watch.stragglers import Stragglers


def beat(process: int, steps: int, host_seconds: float, data_seconds: float = 0.0) -> Beat:
    return Beat(process, 1, steps, "step", 0.0, f"node{process}", "m", 1, steps, host_seconds, data_seconds)


def test_the_slowest_is_named_for_what_it_did_since_the_last_report(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("meshtrain.run.watch.stragglers.time.monotonic", lambda: clock[0])
    stragglers = Stragglers(period=100.0)
    clock[0] = 50.0
    assert stragglers.look([beat(0, 10, 1.0), beat(1, 10, 9.0), beat(2, 10, 1.0)]) is None  # not yet
    clock[0] = 100.0
    words = stragglers.look([beat(0, 20, 2.0), beat(1, 20, 20.0, 18.0), beat(2, 20, 2.0)])
    assert words is not None
    assert "process 1 (node1) starts its part of a step after 1.000 s, 0.900 s of it waiting for data" in words
    assert words.endswith("the others after 0.100 s")
    clock[0] = 200.0  # process 1 was slow before, and is not any more
    assert stragglers.look([beat(0, 40, 4.0), beat(1, 40, 22.0, 18.0), beat(2, 40, 4.1)]) is None
