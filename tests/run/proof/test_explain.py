"""A wrong tensor is described by what was done to it, and the cause names the axis."""

from typing import Any

import numpy as np
import pytest

from meshtrain.run.proof.explain import constant_factor, explain
from tests.layout.arrays import MESH, TENSOR, array, placed

SPEC = array("layers embed mlp", 2, 8, 16)
RIGHT = np.random.default_rng(0).standard_normal(SPEC.shape).astype(np.float32)


def told(found: np.ndarray, kind: str = "grads", **declared: Any) -> str:
    declared = declared or dict(mesh=MESH, rules=TENSOR, grads=dict(embed="data"))
    return str(explain(found, RIGHT, SPEC, kind, placed(**declared)))


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (2, "is 2 times what it should be in every entry: the size of `data`"),
        (0.5, "is 1/2 times what it should be in every entry: 1 over the size of `data`"),
        (4, "is 4 times what it should be in every entry: the size of `tensor`"),
        (0.25, "is 1/4 times what it should be in every entry: 1 over the size of `tensor`"),
        (0.125, "is 1/8 times what it should be in every entry: 1 over the size of `data` x `tensor`"),
        (-1, "the sign is wrong"),
        (1.7, "is 1.7 times what it should be in every entry"),
    ],
)
def test_a_constant_factor_is_named(factor: float, expected: str) -> None:
    assert expected in told(RIGHT * np.float32(factor))


def test_microbatches() -> None:
    text = told(RIGHT / 3, mesh=dict(data=8), rules=dict(batch="data"), accumulate=3)
    assert "1 over the number of microbatches" in text
    assert "averaged where they must be summed" in text


def test_zero_and_not_finite() -> None:
    assert "is 0 everywhere" in told(np.zeros_like(RIGHT))
    holes = RIGHT.copy()
    holes[0, 0, 0] = np.nan
    assert "is not finite in 0% of its entries" in told(holes)


def test_parts_in_the_wrong_order() -> None:
    swapped = np.concatenate([RIGHT[:, :, 4:8], RIGHT[:, :, :4], RIGHT[:, :, 12:], RIGHT[:, :, 8:12]], axis=2)
    text = told(swapped)
    assert "has the 4 parts of 'mlp' (cut over tensor) in the order 1, 0, 3 and 2" in text
    assert "permutation" in text


def test_one_part_wrong() -> None:
    part = RIGHT.copy()
    part[:, :, 8:12] *= 3
    assert "is right but for number 2 of the 4 parts of 'mlp' (cut over tensor)" in told(part)


def test_one_layer_wrong() -> None:
    part = RIGHT.copy()
    part[1] += 1
    assert "is right but for number 1 of the 2 layers" in told(part)


def test_anything_else() -> None:
    noise = np.random.default_rng(1).standard_normal(RIGHT.shape).astype(np.float32)
    assert "differs without a constant factor" in told(noise)


def test_a_factor_must_hold_in_every_entry() -> None:
    assert constant_factor(RIGHT * 2, RIGHT) == pytest.approx(2)
    almost = RIGHT * 2
    almost[0, 0, 0] += 0.1
    assert constant_factor(almost, RIGHT) is None
    assert constant_factor(RIGHT, np.zeros_like(RIGHT)) is None
