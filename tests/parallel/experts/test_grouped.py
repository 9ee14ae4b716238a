"""Products of rows with their expert's matrix against a loop over rows; idle experts, empty rows, blocks that meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.parallel.experts import grouped


@pytest.mark.parametrize("gpu", [False, True], ids=["loop", "ragged_dot"])
@pytest.mark.parametrize("sizes", [[3, 0, 5, 1], [0, 0, 0, 0], [300, 0, 0, 0], [130, 127, 1, 42]])
def test_each_row_times_its_experts_matrix(sizes: list[int], gpu: bool) -> None:
    rng = np.random.default_rng(0)
    num_rows, total = max(sum(sizes), 16), sum(sizes)
    num_rows += grouped.spare(num_rows, gpu)
    x, dy = (rng.normal(size=(num_rows, *shape)).astype(np.float32) for shape in ((6,), (2, 5)))
    w = tuple(rng.normal(size=(4, 6, 5)).astype(np.float32) for _ in range(2))
    expert = np.repeat(np.arange(4), sizes)
    arrays = jnp.asarray(sizes, jnp.int32)

    y = jax.jit(grouped.rows_times, static_argnums=3)(x, w, arrays, gpu)
    wanted_y = np.stack([np.einsum("ra,rab->rb", x[:total], v[expert]) for v in w], axis=1)
    np.testing.assert_allclose(y[:total], wanted_y, atol=1e-5)
    dx = jax.jit(grouped.rows_times_transposed, static_argnums=3)(dy, w, arrays, gpu)
    wanted_dx = sum(np.einsum("rb,rab->ra", dy[:total, c], v[expert]) for c, v in enumerate(w))
    np.testing.assert_allclose(dx[:total], wanted_dx, atol=1e-5)
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    dw = jax.jit(grouped.outer, static_argnums=3)(x, dy, arrays, gpu)
    wanted = np.zeros((2, 4, 6, 5), np.float32)
    for row, e in enumerate(expert):
        wanted[:, e] += np.einsum("a,cb->cab", x[row], dy[row])
    np.testing.assert_allclose(np.stack(dw), wanted, atol=1e-4)
    assert {d.dtype for d in dw} == {np.dtype(np.float32)}
