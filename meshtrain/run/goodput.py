"""Where a run's time went, over all its starts: the share that trained, and what the rest was lost to.

Kept in the run's folder (`goodput.json`), rewritten now and then, so that a start that was killed is counted as far as
it had got. Steps that a later start had to do again are lost, with the seconds that they had taken.
"""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError
from meshtrain.io import disk
from meshtrain.run import metrics, schema
from meshtrain.run.watch import COMPILE, DATA, END, EVALUATION, SAVE, START, STEP

FILE = "goodput.json"
PRODUCTIVE = (STEP, DATA)  # a wait for data goes on beside the step before it; what it costs is in that step's record
LOST, BETWEEN = "steps done again", "between starts"
ORDER = (START, COMPILE, SAVE, EVALUATION, END, LOST, BETWEEN)
PERIOD = 2.0  # seconds between two writes, at most


@dataclass
class Start:
    """One start of a run. began, seen: Unix time; seen: when it was last written. seconds: by phase.

    lost_steps, lost_seconds: of earlier starts, done again by this one. done: it came to the last step asked for.
    """

    began: float
    seen: float
    first: int
    step: int
    seconds: dict[str, float] = field(default_factory=dict)
    lost_steps: int = 0
    lost_seconds: float = 0.0
    done: bool = False


class Goodput:
    """The account of a run, with the start that is under way as its last entry."""

    def __init__(self, folder: Path, first: int, writes: bool = True) -> None:
        """first: the step that this start goes on from. Call it before the records beyond it are cut off.

        writes: whether this is the process that keeps the account.
        """
        self.path, self._writes, self._written = folder / FILE, writes, -math.inf
        self.starts = self._load()
        again = [record for record in metrics.read(folder / metrics.METRICS) if record["step"] > first]
        again = [record for record in again if isinstance(record.get("seconds"), int | float)]
        now = time.time()
        self.starts.append(Start(now, now, first, first))
        self._now.lost_steps, self._now.lost_seconds = len(again), sum(record["seconds"] for record in again)

    @property
    def _now(self) -> Start:
        return self.starts[-1]

    def note(self, step: int, seconds: Mapping[str, float], done: bool = False, force: bool = False) -> None:
        """This start is at `step`, and its phases have taken so long. Writes it, if it is time to (or `force`)."""
        now = time.time()
        self._now.began, self._now.seen, self._now.step = now - sum(seconds.values()), now, step
        self._now.seconds, self._now.done = dict(seconds), done
        if self._writes and (force or time.monotonic() - self._written > PERIOD):
            self._written = time.monotonic()
            with suppress(OSError):  # an account is no reason to end a run
                text = json.dumps([asdict(start) for start in self.starts])
                disk.replace(self.path, text.encode(), durable=False)

    def _load(self) -> list[Start]:
        """The starts before this one; none where they cannot be read: then the file is kept under another name."""
        try:
            return [schema.build(Start, values, FILE) for values in json.loads(self.path.read_bytes())]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, AttributeError, RecursionError, InputError):
            if self._writes:
                with suppress(OSError):
                    self.path.rename(self.path.with_name(f"{FILE}.unread"))
            return []

    def summary(self) -> dict[str, Any]:
        """share: trained time / all time. seconds: what the rest went to. Over all starts so far."""
        return summarise(self.starts)

    def text(self) -> str:
        """The summary as one line."""
        found = self.summary()
        parts = [
            f"{name} {_time(found['seconds'][name])} ({found['seconds'][name] / found['total']:.1%})"
            for name in ORDER
            if found["seconds"].get(name, 0.0) >= 0.0005 * found["total"]
        ]
        starts = f"{found['starts']} start{'s' * (found['starts'] != 1)}"
        lost = found["lost_steps"]
        again = f", {lost} step{'s' * (lost != 1)} done again" if lost else ""
        return (
            f"goodput {found['share']:.1%} of {_time(found['total'])} in {starts}{again};"
            f" the rest: {', '.join(parts) or 'nothing'}"
        )


def summarise(starts: list[Start]) -> dict[str, Any]:
    """The sums over a run's starts. The time between two counts unless the first of them had done what it was asked."""
    seconds: dict[str, float] = dict.fromkeys(ORDER, 0.0)
    trained = 0.0
    for before, start in zip([None, *starts], starts, strict=False):
        for name, spent in start.seconds.items():
            if name in PRODUCTIVE:
                trained += spent
            else:
                seconds[name] = seconds.get(name, 0.0) + spent
        seconds[LOST] += start.lost_seconds
        if before is not None and not before.done:
            seconds[BETWEEN] += max(start.began - before.seen, 0.0)
    trained = max(trained - seconds[LOST], 0.0)
    total = trained + sum(seconds.values())
    return {
        "share": trained / total if total else 0.0,
        "total": total,
        "trained": trained,
        "starts": len(starts),
        "lost_steps": sum(start.lost_steps for start in starts),
        "seconds": seconds,
    }


def _time(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds / 60:.1f} min"
        if seconds < 6000
        else f"{seconds / 3600:.1f} h"
    )
