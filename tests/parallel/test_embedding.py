"""The lookup and its gradient against numpy, in any layout; what the compiler makes of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.layout import Placement, single_placement
from meshtrain.parallel.embedding import embed_tokens
from tests.parallel.layouts import LAYOUTS, placed
from tests.parallel.references import assert_close

B, T, D, V = 8, 24, 16, 64


def make(dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    table, dx = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((V, D), (B, T, D)))
    return table, jnp.asarray(rng.integers(0, V // 2, (B, T)), jnp.int32), dx


def run(place: Placement, table: Any, tokens: Any, dx: Any) -> tuple[jax.Array, jax.Array]:
    def both(table: Any, tokens: Any, dx: Any) -> tuple[jax.Array, jax.Array]:
        x, pull = jax.vjp(lambda w: embed_tokens(place.at_use(w, "vocab", "embed"), tokens, place), table)
        return x, pull(dx)[0]

    return jax.jit(both)(table, tokens, dx)


def compare(found: tuple[Any, Any], table: Any, tokens: Any, dx: Any, eps: float = 2.0**-23) -> None:
    x, dtable = found
    np.testing.assert_array_equal(x, table[tokens])
    expected = np.zeros((V, D))
    np.add.at(expected, np.asarray(tokens), np.asarray(dx, np.float64))
    assert_close(dtable, expected, B * T // V, "dtable", eps)


@pytest.mark.parametrize("name", ["single", *LAYOUTS])
def test_every_layout_equals_numpy(name: str) -> None:
    given = make()
    compare(run(placed(name), *given), *given)


def test_bfloat16_is_summed_in_float32() -> None:
    table, tokens, _ = make(jnp.bfloat16)
    dx = jnp.full((B, T, D), 1 + 2.0**-7, jnp.bfloat16)
    tokens = jnp.zeros_like(tokens)
    _, dtable = run(single_placement(), table, tokens, dx)
    assert dtable.dtype == jnp.bfloat16
    np.testing.assert_array_equal(dtable[0], jnp.full(D, B * T * (1 + 2.0**-7), jnp.bfloat16))


@pytest.mark.parametrize(("name", "collective"), [("batch and vocab", "psum"), ("sequence", "all_gather")])
def test_a_dropped_collective_bites(name: str, collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = make()
    wrong = {"psum": lambda x, axes: x, "all_gather": lambda x, axes, axis, tiled: jnp.concatenate([x] * 4, axis)}
    monkeypatch.setattr(f"jax.lax.{collective}", wrong[collective])
    with pytest.raises(AssertionError):
        compare(run(placed(name), *given), *given)
