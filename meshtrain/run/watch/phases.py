"""What the main thread of a run is doing, for how long, and where its time went: one clock for all who ask."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from meshtrain.run.watch.budget import STEP, Budgets


class Phases:
    """The main thread enters one phase after another; other threads read."""

    def __init__(self, first: str, budgets: Budgets) -> None:
        self.budgets = budgets
        self._lock = threading.Lock()
        self.now = (first, time.monotonic())  # a phase and since when: one value, for a name beside the time of the
        # phase before it would look like a hang
        self.spent: dict[str, float] = defaultdict(float)  # seconds in phases that are over

    def enter(self, name: str) -> float:
        """Something else begins, and what was done so far has ended well; returns how long that took, in seconds."""
        with self._lock:
            now = time.monotonic()
            before, begun = self.now
            self.now = name, now
        seconds = now - begun
        self.spent[before] += seconds
        self.budgets.learn(before, seconds)
        return seconds

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """`enter`, and back to the steps; after an error the phase stays as it was."""
        self.enter(name)
        yield
        self.enter(STEP)

    def pause(self, seconds: float) -> None:
        """The process was stopped for so long: no phase took that time."""
        with self._lock:
            name, begun = self.now
            self.now = name, min(begun + seconds, time.monotonic())  # it may have begun since

    def totals(self) -> dict[str, float]:
        """Seconds of each phase so far, with the one under way."""
        totals, (name, begun) = dict(self.spent), self.now
        totals[name] = totals.get(name, 0.0) + time.monotonic() - begun
        return totals
