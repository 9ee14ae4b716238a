"""The learning rate as a closed formula of the step, computed on the host in float64 and handed to each step.

So the logged value, the value used and the formula are the same number, on every host and after any resume.
"""

import math
from dataclasses import dataclass

from meshtrain.errors import InputError, one_of

SHAPES = ("cosine", "wsd", "linear", "constant")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate's way: linear warm-up, then `shape`.

    shape: "cosine" from the peak to `final` times the peak; "wsd" (warm-up, stable, decay) stays at the peak and goes
    down linearly in the last `decay` share of the steps; "linear" from the peak to the end; "constant".
    warmup: its steps; step s (from 0) uses (s + 1) / warmup of the peak. final: share of the peak at the last step.
    decay: share of all steps, for "wsd". steps: the step at which the decay ends; None: the run's steps.
    """

    shape: str = "cosine"
    warmup: int = 0
    final: float = 0.1
    decay: float = 0.1
    steps: int | None = None

    def __post_init__(self) -> None:
        one_of("schedule.shape", self.shape, SHAPES)
        if self.steps is not None and self.steps < 1:
            raise InputError(f"schedule.steps: {self.steps} must be at least 1, or None for the run's steps.")
        if self.warmup < 0 or not 0 <= self.final <= 1 or not 0 <= self.decay <= 1:
            raise InputError(
                f"schedule: warmup={self.warmup} must be at least 0, final={self.final} and decay={self.decay} in 0..1."
            )


def learning_rate(peak: float, config: ScheduleConfig, step: int, num_steps: int) -> float:
    """The learning rate that step `step` (0, 1, ...) of `num_steps` uses. After the end it stays at the final value."""
    end = config.steps or num_steps
    if step < config.warmup:
        return peak * (step + 1) / config.warmup
    if config.shape == "constant":
        return peak
    start = config.warmup if config.shape != "wsd" else max(config.warmup, end - round(config.decay * end))
    done = min(max((step - start) / max(end - 1 - start, 1), 0.0), 1.0)  # 0 at the decay's first step, 1 at its last
    share = 0.5 * (1 + math.cos(math.pi * done)) if config.shape == "cosine" else 1 - done
    return peak * (config.final + (1 - config.final) * share)
