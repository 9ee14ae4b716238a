"""Which process keeps the others waiting? Told from what each spends on its own host between two steps.

In a step all processes wait for the slowest in its collectives, so the time of a step is the same for all. What differs
is the time until a process starts its part: waiting for data, and all that Python does. A slow device is not seen so.
"""

import statistics
import time
from collections.abc import Sequence

from meshtrain.run.watch.heartbeat import Beat

WORTH = 0.05  # of a step's time: what the slowest must be behind to be named


class Stragglers:
    """Compares the beats of all processes, once in `period` seconds."""

    def __init__(self, period: float) -> None:
        self._period, self._since = period, time.monotonic()
        self._before: dict[int, Beat] = {}

    def look(self, beats: Sequence[Beat]) -> str | None:
        """The slowest process since the last report, in words; None where it is not time, or none is slower."""
        now = time.monotonic()
        if now - self._since < self._period:
            return None
        words = self._slowest(beats, now - self._since)
        self._since, self._before = now, {beat.process: beat for beat in beats}
        return words

    def _slowest(self, beats: Sequence[Beat], seconds: float) -> str | None:
        host: dict[int, float] = {}
        data: dict[int, float] = {}
        for beat in beats:
            old = self._before.get(beat.process)
            steps = beat.steps - (old.steps if old else 0)
            if steps > 0:
                host[beat.process] = (beat.host_seconds - (old.host_seconds if old else 0.0)) / steps
                data[beat.process] = (beat.data_seconds - (old.data_seconds if old else 0.0)) / steps
        if len(host) < 2:
            return None
        slowest = max(host, key=lambda process: host[process])
        others = statistics.median(value for process, value in host.items() if process != slowest)
        steps = max(
            beat.steps - (self._before[beat.process].steps if beat.process in self._before else 0) for beat in beats
        )
        if host[slowest] - others < WORTH * seconds / steps:
            return None
        name = next(beat.host for beat in beats if beat.process == slowest)
        return (
            f"slowest of the last {seconds:.0f} s: process {slowest} ({name}) starts its part of a step after"
            f" {host[slowest]:.3f} s, {data[slowest]:.3f} s of it waiting for data; the others after {others:.3f} s"
        )
