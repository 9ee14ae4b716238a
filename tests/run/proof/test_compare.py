"""What is compared with what tolerance: small errors pass, one wrong entry does not, and the first failure is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshtrain.model import ModelConfig
from meshtrain.run.proof.compare import compare
from meshtrain.run.proof.outcome import Arrays, Outcome
from meshtrain.run.proof.tolerance import Tolerances, U, tolerances

LIMITS = Tolerances(loss=1e-6, gradient=1e-5, parameter=1e-4, moment=2e-5)
ORDER = ("first", "second", "third")
METRICS = dict(loss=3.0, ce=2.9, z_loss=0.1, grad_norm=1.5, num_tokens=10.0, skipped=0.0)


def arrays(scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(0)
    return {path: (scale * rng.standard_normal((4, 4))).astype(np.float32) for path in reversed(ORDER)}


def outcome(**changed: Any) -> Outcome:
    start = arrays()
    base = Outcome(
        metrics=(METRICS, METRICS),
        initial=start,
        gradients=arrays(),
        params={path: value + 0.1 for path, value in start.items()},
        moments={f"mu of {path}": value for path, value in arrays().items()},
        start=None,  # type: ignore[arg-type]
    )
    return replace(base, **changed)


def nudged(values: Arrays, path: str, by: float) -> Arrays:
    changed = {name: value.copy() for name, value in values.items()}
    changed[path][1, 2] += np.float32(by)
    return changed


def test_the_same_is_equal() -> None:
    comparison = compare(outcome(), outcome(), LIMITS, ORDER)
    assert comparison.equal
    assert comparison.first() is None
    assert {difference.what for difference in comparison.differences} == {"loss", "gradient", "moment", "parameter"}


def test_rounding_is_equal_and_one_wrong_entry_is_not() -> None:
    expected = outcome()
    close = outcome(gradients=nudged(expected.gradients, "second", 1e-6))
    assert compare(expected, close, LIMITS, ORDER).equal
    wrong = outcome(gradients=nudged(nudged(expected.gradients, "third", 1e-3), "second", 1e-3))
    comparison = compare(expected, wrong, LIMITS, ORDER)
    assert not comparison.equal
    first = comparison.first()
    assert first is not None
    assert (first.what, first.path) == ("gradient", "second")  # in the order of the forward pass, not of the tree


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_equal(bad: float) -> None:
    expected = outcome()
    comparison = compare(expected, outcome(params=nudged(expected.params, "first", bad)), LIMITS, ORDER)
    assert not comparison.equal
    assert comparison.worst("parameter").path == "first"


def test_parameters_are_held_against_their_movement() -> None:
    """A movement of 0.1 that is 0.1 % wrong is wrong, though it is 0.01 % of the weight."""
    expected = outcome()
    assert not compare(expected, outcome(params=nudged(expected.params, "first", 1e-4)), LIMITS, ORDER).equal
    assert compare(expected, outcome(params=nudged(expected.params, "first", 1e-6)), LIMITS, ORDER).equal


def test_a_tensor_where_all_cancels_is_held_against_the_model() -> None:
    tiny = outcome(gradients={**arrays(), "first": np.zeros((4, 4), np.float32)})
    noise = outcome(gradients={**arrays(), "first": np.full((4, 4), 1e-8, np.float32)})
    assert compare(tiny, noise, LIMITS, ORDER).equal
    half = outcome(gradients={**arrays(), "first": np.full((4, 4), 1e-4, np.float32)})
    assert not compare(tiny, half, LIMITS, ORDER).equal


def test_metrics_and_faults() -> None:
    wrong = dict(METRICS, loss=3.001)
    assert not compare(outcome(), outcome(metrics=(METRICS, wrong)), LIMITS, ORDER).equal
    miscounted = dict(METRICS, num_tokens=9.0)
    assert compare(outcome(), outcome(metrics=(METRICS, miscounted)), LIMITS, ORDER).faults == (
        "step 2 counts 9 tokens",
    )
    skipped = dict(METRICS, skipped=1.0)
    assert compare(outcome(), outcome(metrics=(skipped, METRICS)), LIMITS, ORDER).faults == ("step 1 was skipped",)
    assert compare(outcome(), outcome(faults=("copies differ",)), LIMITS, ORDER).faults == ("copies differ",)
    moved = outcome(initial=nudged(outcome().initial, "second", 1e-7))
    assert compare(outcome(), moved, LIMITS, ORDER).faults == (
        "initial weights: second is not bitwise that of the reference",
    )


def test_tolerances_follow_the_formula() -> None:
    """depth = 16 layers + 6; widest sum 97; 256 tokens; CLOSE (1e-5 and 1e-4) is not exceeded by a small model."""
    model = ModelConfig(2, 32, 4, 2, 8, 48, 97, 32)
    found = tolerances(model, 256, 100.0, 3, 0.3, 0.1)
    assert found.gradient == pytest.approx(2 * 38 * U * 16)
    assert found.loss == pytest.approx(U * (38 * 0.97**0.5 + 10))
    assert found.parameter == pytest.approx(2 * (1 + 3) * 3 * found.gradient)
    assert found.moment == pytest.approx(6 * found.gradient)
    assert found.loss < 1e-5
    assert found.gradient < 1e-4
    deeper = tolerances(replace(model, num_layers=8), 256, 100.0, 3, 0.3, 0.1)
    assert deeper.gradient / found.gradient == pytest.approx(134 / 38)
