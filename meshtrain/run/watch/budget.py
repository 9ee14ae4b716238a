"""How long may a phase of a run take? Learned from the run itself, never below a floor."""

import statistics
from collections import defaultdict, deque
from dataclasses import dataclass

from meshtrain.errors import InputError

# What the main thread of a run is doing. The first ones happen once: their budget is fixed.
START, COMPILE, END = "start", "compile", "end"
DATA, STEP, EVALUATION, SAVE = "data wait", "step", "evaluation", "save"
FIXED = (START, COMPILE, END)
FEWEST, MOST = 3, 101  # durations that the usual one is the median of


@dataclass(frozen=True)
class WatchConfig:
    """When a run that no longer moves is ended. All in seconds but `factor`.

    A step, a wait for data, a batch of an evaluation or a save that takes longer than `floor` and than `factor` times
    the usual is a hang. start: for what has no usual time: the start, compilation, the first of each kind, the end.
    lost: a process that gives no sign of life for that long is lost. enabled=False: a run may stand still for ever.
    report: how often the slowest process is named.
    """

    enabled: bool = True
    floor: float = 300.0
    factor: float = 10.0
    start: float = 3600.0
    lost: float = 60.0
    report: float = 300.0

    def __post_init__(self) -> None:
        for name in ("floor", "factor", "start", "lost", "report"):
            if not getattr(self, name) > 0:
                raise InputError(f"watch.{name}: {getattr(self, name)} must be positive; watch.{name}=60 would work.")

        if self.lost >= self.floor:
            raise InputError(
                f"watch.lost: {self.lost:g} s must be less than watch.floor={self.floor:g}, or a lost process looks"
                f" like a hang; watch.lost={self.floor / 5:g} would work."
            )

    @property
    def interval(self) -> float:
        """Seconds between two signs of life, and between two looks at the clock."""
        return min(max(min(self.lost, self.floor) / 15, 0.2), 5.0)


class Budgets:
    """The durations of each phase so far, and what they allow the next one."""

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._seen: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST))

    def learn(self, phase: str, seconds: float) -> None:
        """A phase has ended well after `seconds`."""
        if phase not in FIXED:
            self._seen[phase].append(seconds)

    def usual(self, phase: str) -> float | None:
        """The median so far, in seconds; None where too few have been seen."""
        seen = list(self._seen[phase])
        return statistics.median(seen) if len(seen) >= FEWEST else None

    def seconds(self, phase: str) -> float:
        """What the next one may take."""
        usual = self.usual(phase)
        if usual is None:
            return self._config.start
        return max(self._config.floor, self._config.factor * usual)
