"""The learning rate against closed formulas (case K5), for every shape, at every step."""

import math

import pytest

from meshtrain.errors import InputError
from meshtrain.step.schedule import ScheduleConfig, learning_rate

PEAK = 6e-4


def rates(num_steps: int, **config: object) -> list[float]:
    schedule = ScheduleConfig(**config)  # type: ignore[arg-type]
    return [learning_rate(PEAK, schedule, step, num_steps) for step in range(num_steps + 2)]


def test_warm_up_3_and_cosine_to_20() -> None:
    found = rates(20, shape="cosine", warmup=3, final=0.1)
    assert found[:3] == [PEAK / 3, PEAK * 2 / 3, PEAK]
    for step in range(3, 20):
        share = 0.5 * (1 + math.cos(math.pi * (step - 3) / 16))
        assert found[step] == PEAK * (0.1 + 0.9 * share)
    assert found[3] == PEAK
    assert found[19] == found[20] == found[21] == pytest.approx(0.1 * PEAK)


def test_a_resume_asks_the_same_formula() -> None:
    """The rate is a function of the step alone: there is no state that a resume at 2, 3 or 19 could lose."""
    schedule = ScheduleConfig(warmup=3)
    whole = [learning_rate(PEAK, schedule, step, 20) for step in range(20)]
    for start in (2, 3, 19):
        assert [learning_rate(PEAK, schedule, step, 20) for step in range(start, 20)] == whole[start:]


def test_the_decay_may_end_before_or_after_the_run() -> None:
    longer = [learning_rate(PEAK, ScheduleConfig(steps=40), step, 20) for step in range(20)]
    assert longer == [learning_rate(PEAK, ScheduleConfig(), step, 40) for step in range(20)]
    assert learning_rate(PEAK, ScheduleConfig(steps=10), 15, 20) == pytest.approx(0.1 * PEAK)


def test_warm_up_stable_decay() -> None:
    found = rates(20, shape="wsd", warmup=2, final=0.0, decay=0.2)
    assert found[2:16] == [PEAK] * 14
    assert found[16:20] == pytest.approx([PEAK, PEAK * 2 / 3, PEAK / 3, 0])


def test_linear_and_constant() -> None:
    assert rates(5, shape="linear", final=0.0)[:5] == pytest.approx([PEAK * (1 - s / 4) for s in range(5)])
    assert rates(5, shape="constant", warmup=2) == [PEAK / 2, *[PEAK] * 6]


@pytest.mark.parametrize("bad", [dict(shape="cosin"), dict(warmup=-1), dict(final=2.0), dict(decay=-0.1)])
def test_bad_schedules(bad: dict[str, object]) -> None:
    with pytest.raises(InputError, match="schedule"):
        ScheduleConfig(**bad)  # type: ignore[arg-type]
