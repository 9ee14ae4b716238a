"""Rotary positions against float64: frequencies of each scaling, tables at large positions, the rotation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.model import ModelConfig, RopeScaling
from meshtrain.model.rotary import frequencies, rotary_tables, rotate
from tests.model import reference
from tests.model.families import SIZES

SCALINGS = dict(
    default=None,
    linear=RopeScaling("linear", 4.0),
    llama3=RopeScaling("llama3", 8.0, original_length=8192),
    yarn=RopeScaling("yarn", 40.0, original_length=4096),
    yarn_untruncated=RopeScaling("yarn", 40.0, original_length=4096, truncate=False, beta_fast=16.0, beta_slow=2.0),
    yarn_factor=RopeScaling("yarn", 4.0, original_length=32768, attention_factor=0.7),
    yarn_mscale=RopeScaling("yarn", 40.0, original_length=4096, mscale=1.0, mscale_all_dim=0.5),
)
POSITIONS = np.array([[0, 1, 255, 256, 257, 258, 4094, 4095, 32766, 32767, 131070, 131071, 2**24 + 1, 2**30 + 7]])


def make(scaling: RopeScaling | None, theta: float = 500000.0) -> ModelConfig:
    return ModelConfig(**{**SIZES, "head_dim": 128}, rope_theta=theta, rope_scaling=scaling)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("theta", [10000.0, 1e6])
def test_frequencies_are_those_of_the_definition(scaling: RopeScaling | None, theta: float) -> None:
    config = make(scaling, theta)
    found, factor = frequencies(config)
    expected, expected_factor = reference.rope(config)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert factor == pytest.approx(expected_factor, rel=1e-14)


def test_yarn_numbers_by_hand() -> None:
    # 64 pairs, theta 10000, 4096 tokens: pair 20 makes 36.6 turns (kept), 21 makes 31.7; pair 46 makes 0.87 (divided).
    found, factor = frequencies(make(SCALINGS["yarn"], 10000.0))
    base = 10000.0 ** (-np.arange(64) / 64)
    assert factor == pytest.approx(0.1 * np.log(40.0) + 1)
    np.testing.assert_allclose(found[:21], base[:21], rtol=1e-14)
    np.testing.assert_allclose(found[46:], base[46:] / 40, rtol=1e-14)
    assert found[21] < base[21]
    assert found[45] > base[45] / 40


def test_llama3_numbers_by_hand() -> None:
    found, _ = frequencies(make(SCALINGS["llama3"]))
    base = 500000.0 ** (-np.arange(64) / 64)
    ratio = base / found
    turns = 8192 * base / (2 * np.pi)
    np.testing.assert_allclose(ratio[turns > 4], 1.0, rtol=1e-14)
    np.testing.assert_allclose(ratio[turns < 1], 8.0, rtol=1e-14)
    assert ((ratio[(turns > 1) & (turns < 4)] > 1) & (ratio[(turns > 1) & (turns < 4)] < 8)).all()
    assert ((turns > 1) & (turns < 4)).any()


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
def test_tables_are_exact_at_large_positions(scaling: RopeScaling | None) -> None:
    """Two roundings of at most half a turn to 24 bits, the product with 2 pi, cos: below 1e-6 (a bf16 unit is 4e-3)."""
    config = make(scaling)
    radians, factor = reference.rope(config)
    phase = POSITIONS[..., None].astype(np.longdouble) * np.asarray(radians, np.longdouble)
    cos, sin = (np.asarray(table) for table in rotary_tables(jnp.asarray(POSITIONS, jnp.int32), config))
    assert cos.dtype == sin.dtype == np.float32
    # positions x a float64 frequency: its own rounding grows with the position
    bound = factor * (1e-6 + 2.0**-52 * POSITIONS[..., None])
    assert (np.abs(cos - np.cos(phase) * factor) < bound).all()
    assert (np.abs(sin - np.sin(phase) * factor) < bound).all()


def test_a_phase_in_float32_would_not_pass() -> None:
    radians, _ = reference.rope(make(None))
    position = np.float32(131071)
    naive = np.cos(position * np.asarray(radians, np.float32))
    assert np.abs(naive - np.cos(131071 * np.asarray(radians))).max() > 1e-3


def test_neighbouring_positions_are_distinct() -> None:
    config = make(SCALINGS["linear"])
    positions = jnp.concatenate([jnp.arange(250, 262), jnp.arange(131060, 131072)])[None]
    tables = np.concatenate(rotary_tables(positions, config), axis=-1)[0]
    gaps = np.abs(tables[1:] - tables[:-1]).max(-1)
    assert gaps.min() > 0.1  # the fastest pair turns by 1 / 4 radian a step


def test_rotation_depends_on_the_distance_alone() -> None:
    config = ModelConfig(**SIZES)
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 6))

    def score(i: int, j: int) -> float:
        at = [rotary_tables(jnp.array([[p]]), config) for p in (i, j)]
        return float(jnp.vdot(rotate(q, at[0]), rotate(k, at[1])))

    assert score(100007, 100004) == pytest.approx(score(3, 0), abs=1e-5)
    assert abs(score(4, 0) - score(3, 0)) > 1e-3


def test_rotation_against_numpy_and_in_bf16() -> None:
    config = make(SCALINGS["yarn"])
    x = jax.random.normal(jax.random.key(0), (1, POSITIONS.shape[1], 2, 128))
    tables = rotary_tables(jnp.asarray(POSITIONS, jnp.int32), config)
    expected = reference.rotate(np.asarray(x, np.float64)[0], POSITIONS[0], config)
    np.testing.assert_allclose(rotate(x, tables)[0], expected, atol=2e-5)
    wide = rotate(x.astype(jnp.bfloat16).astype(jnp.float32), tables).astype(jnp.bfloat16)
    assert (rotate(x.astype(jnp.bfloat16), tables) == wide).all()
