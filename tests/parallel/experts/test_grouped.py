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
    num_rows, total = max(sum(sizes) + 7, 16), sum(sizes)
    x, dy = rng.normal(size=(num_rows, 6)).astype(np.float32), rng.normal(size=(num_rows, 5)).astype(np.float32)
    w = rng.normal(size=(4, 6, 5)).astype(np.float32)
    expert = np.repeat(np.arange(4), sizes)
    arrays = jnp.asarray(sizes, jnp.int32)

    y = jax.jit(grouped.rows_times, static_argnums=3)(x, w, arrays, gpu)
    np.testing.assert_allclose(y[:total], np.einsum("ra,rab->rb", x[:total], w[expert]), atol=1e-5)
    np.testing.assert_array_equal(y[total:], 0)
    dx = jax.jit(grouped.rows_times_transposed, static_argnums=3)(dy, w, arrays, gpu)
    np.testing.assert_allclose(dx[:total], np.einsum("rb,rab->ra", dy[:total], w[expert]), atol=1e-5)
    np.testing.assert_array_equal(dx[total:], 0)
    dw = jax.jit(grouped.outer, static_argnums=3)(x, dy, arrays, gpu)
    wanted = np.zeros_like(w)
    for row, e in enumerate(expert):
        wanted[e] += np.outer(x[row], dy[row])
    np.testing.assert_allclose(dw, wanted, atol=1e-4)
    assert dw.dtype == jnp.float32
