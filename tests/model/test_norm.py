"""Norms and activations against numpy float64: values, and gradients by central differences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from meshtrain.layout import single_placement
from meshtrain.model.mlp import activate
from meshtrain.model.norm import Norm, normalize
from tests.model import reference

# float32 sums of 24 numbers of size 1: some 24 half units of 6e-8, with a factor for cancellation.
TOLERANCE = 2e-5


def norm64(x: np.ndarray, scale: np.ndarray, center: bool, eps: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True) if center else x
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def slope(function: Callable[[np.ndarray], float], at: np.ndarray, direction: np.ndarray) -> float:
    """Directional derivative by central differences in float64."""
    step = 1e-6
    return (function(at + step * direction) - function(at - step * direction)) / (2 * step)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_normalize_and_its_gradients(center: bool, eps: float) -> None:
    rng = np.random.default_rng(0)
    x, dy, direction = rng.normal(1.0, 2.0, (3, 4, 5, 24))
    scale, scale_direction = rng.normal(1.0, 0.5, (2, 24))
    y, back = jax.vjp(lambda x, s: normalize(x, s, center, eps), *(jnp.asarray(a, jnp.float32) for a in (x, scale)))
    np.testing.assert_allclose(y, norm64(x, scale, center, eps), rtol=TOLERANCE, atol=TOLERANCE)
    dx, dscale = back(jnp.asarray(dy, jnp.float32))
    expected = slope(lambda a: float((norm64(a, scale, center, eps) * dy).sum()), x, direction)
    assert float((np.asarray(dx) * direction).sum()) == pytest.approx(expected, rel=1e-4)
    expected = slope(lambda s: float((norm64(x, s, center, eps) * dy).sum()), scale, scale_direction)
    assert float((np.asarray(dscale) * scale_direction).sum()) == pytest.approx(expected, rel=1e-4)


def test_statistics_are_float32_for_bf16() -> None:
    """256 equal numbers and one large: a bf16 sum of squares would stop growing."""
    x = jnp.concatenate([jnp.full((512,), 0.25), jnp.array([16.0])]).astype(jnp.bfloat16)[None]
    scale = jnp.ones((513,))
    y = normalize(x, scale, False, 1e-6)
    assert y.dtype == jnp.bfloat16
    expected = norm64(np.asarray(x, np.float64), np.ones(513), False, 1e-6)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2.0**-8)


def test_bf16_gradient_of_the_scale_is_summed_in_float32() -> None:
    x = jnp.ones((4096, 8), jnp.bfloat16)
    scale_gradient = jax.grad(lambda s: normalize(x, s, False, 1e-6).astype(jnp.float32).sum())(jnp.ones((8,)))
    assert scale_gradient.dtype == jnp.float32
    np.testing.assert_allclose(scale_gradient, 4096.0, rtol=1e-5)


def test_plus_one_stores_the_difference() -> None:
    norm, plain = (Norm(8, "embed", "rms", 1e-6, plus_one) for plus_one in (True, False))
    assert norm.scale.get_metadata("start") == ("constant", 0.0)
    assert plain.scale.get_metadata("start") == ("constant", 1.0)
    x = jax.random.normal(jax.random.key(0), (3, 8))
    scale = jax.random.normal(jax.random.key(1), (8,))
    found = [
        nnx.merge(nnx.split(module)[0], {"scale": numbers})(x, single_placement())
        for module, numbers in ((norm, scale), (plain, scale + 1))
    ]
    np.testing.assert_array_equal(found[0], found[1])


ACTIVATIONS: dict[str, Any] = dict(
    swiglu=lambda y: y[:, :, 0] / (1 + np.exp(-y[:, :, 0])) * y[:, :, 1],
    geglu=lambda y: reference.gelu(y[:, :, 0]) * y[:, :, 1],
    gelu=lambda y: reference.gelu(y[:, :, 0]),
)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_its_gradient(name: str) -> None:
    rng = np.random.default_rng(1)
    y, direction = rng.normal(0, 2, (2, 3, 4, 1 if name == "gelu" else 2, 8))
    dh = rng.normal(size=(3, 4, 8))
    h, back = jax.vjp(lambda y: activate(y, name), jnp.asarray(y, jnp.float32))
    np.testing.assert_allclose(h, ACTIVATIONS[name](y), rtol=TOLERANCE, atol=TOLERANCE)
    (dy,) = back(jnp.asarray(dh, jnp.float32))
    expected = slope(lambda a: float((ACTIVATIONS[name](a) * dh).sum()), y, direction)
    assert float((np.asarray(dy) * direction).sum()) == pytest.approx(expected, rel=1e-4)
