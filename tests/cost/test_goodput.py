"""Failures, checkpoints and what they cost: the published figures, and the advice against a search."""

from dataclasses import replace

import pytest

from meshtrain.cost.goodput import advised_interval, bill, goodput
from meshtrain.cost.quantity import Seconds, microseconds, seconds
from meshtrain.errors import InputError
from tests.cost.clusters import cluster


def test_the_54_days_of_llama_3() -> None:
    """THEORY 6: 419 unexpected interruptions in 54 days on 16,384 GPUs: one in 3.1 hours, and over 90 % effective."""
    found = goodput(cluster("h100_roce"), 16384, save=seconds(10), restart=seconds(600))
    assert found.between_failures / 3600 == pytest.approx(54 * 24 / 419)
    assert 0.90 < found.share < 0.95
    assert found.share + found.saving + found.again + found.restarting == pytest.approx(1)


def test_twice_the_gpus_fail_twice_as_often() -> None:
    h100 = cluster("h100_roce")
    one, two = (goodput(h100, n, seconds(10), seconds(600), interval=seconds(900)) for n in (8192, 16384))
    assert one.between_failures == 2 * two.between_failures
    assert two.restarting == 2 * one.restarting
    assert two.share < one.share


@pytest.mark.parametrize("save", [1.0, 10.0, 60.0, 300.0])
@pytest.mark.parametrize("num_gpus", [512, 16384])
def test_the_advice_is_the_best_interval(save: float, num_gpus: int) -> None:
    h100 = cluster("h100_roce")

    def share(interval: float) -> float:
        return goodput(h100, num_gpus, seconds(save), seconds(600), seconds(interval)).share

    advised = goodput(h100, num_gpus, seconds(save), seconds(600)).advised
    assert all(share(advised) >= share(advised * factor) - 2e-4 for factor in (0.25, 0.5, 0.8, 1.25, 2, 4))
    assert share(advised) > share(advised / 3)
    assert share(advised) > share(advised * 3)


def test_young_where_saving_is_short() -> None:
    """sqrt(2 x save x mean) less the save itself: within 2 % where a save takes a ten-thousandth of the mean."""
    assert advised_interval(seconds(1), seconds(10000)).value == pytest.approx((2 * 1 * 10000) ** 0.5, rel=0.02)
    assert advised_interval(seconds(100), seconds(10)) == Seconds(10)
    assert advised_interval(microseconds(1), seconds(10)).value > 0


def test_bill() -> None:
    priced = replace(cluster("h100_roce"), price=2.5)
    found = bill(priced, 16, seconds(3.6), 1000, share=0.5)
    assert (found.hours, found.gpu_hours, found.usd) == pytest.approx((2, 32, 80))
    assert bill(cluster("h100_roce"), 16, seconds(3.6), 1000).usd is None


def test_without_a_failure_rate() -> None:
    with pytest.raises(InputError, match=r"the cluster a100_ib has no failure rate; .*419 failures in 54 days"):
        goodput(cluster("a100_ib"), 8, seconds(1), seconds(1))
