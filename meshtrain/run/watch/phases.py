"""What the main thread of a run is doing, for how long, and where its time went: one clock for all who ask."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from meshtrain.run.watch.budget import STEP, Budgets


class Phases:
    """The main thread enters one phase after another; other threads read."""

    def __init__(self, first: str, budgets: Budgets) -> None:
        self.budgets = budgets
        self.name, self.begun = first, time.monotonic()
        self.spent: dict[str, float] = defaultdict(float)  # seconds in phases that are over

    def enter(self, name: str) -> float:
        """Something else begins, and what was done so far has ended well; returns how long that took, in seconds."""
        now = time.monotonic()
        seconds, before = now - self.begun, self.name
        self.name, self.begun = name, now
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
        self.begun += seconds

    def totals(self) -> dict[str, float]:
        """Seconds of each phase so far, with the one under way."""
        totals = dict(self.spent)
        totals[self.name] = totals.get(self.name, 0.0) + time.monotonic() - self.begun
        return totals
