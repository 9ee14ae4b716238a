"""Products of rows with the matrices of their expert: rows stand expert by expert, and no work is done for empty rows.

On a GPU `ragged_dot`; on a CPU, whose compiler would make of that one product for each expert with *all* rows, a loop
over blocks of rows, with an expert's matrices joined (and transposed) once for all of its blocks. c counts the matrices
of one expert (gate and up): w_EAB is a tuple of c, rows on their other side are [R, c, B]. The caller has its own
backward rule. What results hold behind the last expert's rows is undefined (finite on a CPU).
"""

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import RaggedDotDimensionNumbers

BLOCK = 128  # rows of a block: enough for a matrix product to run at full speed

_OUTER = RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


def spare(num_rows: int, gpu: bool) -> int:
    """How many rows more a buffer of `num_rows` needs behind its end, so that no block reaches beyond it."""
    return 0 if gpu else min(BLOCK, num_rows)


def rows_times(x_RA: jax.Array, w_EAB: tuple[jax.Array, ...], sizes_E: jax.Array, gpu: bool) -> jax.Array:
    """[R, c, B]: each row times the matrices of its expert. Of R rows the last are `spare`."""
    if gpu:
        return jnp.stack([lax.ragged_dot(x_RA, w, sizes_E) for w in w_EAB], axis=1)
    y = _by_block(x_RA, w_EAB, sizes_E, lambda *w_AB: jnp.concatenate(w_AB, axis=1))
    return y.reshape(y.shape[0], len(w_EAB), -1)


def rows_times_transposed(x_RcB: jax.Array, w_EAB: tuple[jax.Array, ...], sizes_E: jax.Array, gpu: bool) -> jax.Array:
    """[R, A]: the sum over c of each row times the transposed matrix of its expert. Of R rows the last are `spare`."""
    if gpu:
        return reduce(jnp.add, (lax.ragged_dot(x_RcB[:, c], w.swapaxes(1, 2), sizes_E) for c, w in enumerate(w_EAB)))
    return _by_block(_flat(x_RcB), w_EAB, sizes_E, lambda *w_AB: jnp.concatenate([w.T for w in w_AB], axis=0))


def outer(x_RA: jax.Array, y_RcB: jax.Array, sizes_E: jax.Array, gpu: bool) -> tuple[jax.Array, ...]:
    """c times [E, A, B]: the sum over each expert's rows of x y^T: the gradients of its matrices, in float32."""
    if gpu:
        return tuple(
            lax.ragged_dot_general(x_RA, y_RcB[:, c], sizes_E, _OUTER, preferred_element_type=jnp.float32)
            for c in range(y_RcB.shape[1])
        )
    size, y_RB = _block(x_RA), _flat(y_RcB)

    def expert(start: jax.Array, number: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            mine = (i * size + jnp.arange(size) < number)[:, None]
            xs, ys = (lax.dynamic_slice_in_dim(a, start + i * size, size) for a in (x_RA, y_RB))
            return total + lax.dot_general(
                jnp.where(mine, xs, 0), ys, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )

        zero = jnp.zeros((x_RA.shape[1], y_RB.shape[1]), jnp.float32)
        total = lax.fori_loop(0, -(-number // size), add, zero)
        return start + number, tuple(jnp.split(total, y_RcB.shape[1], axis=1))

    return lax.scan(expert, jnp.int32(0), sizes_E)[1]


def _by_block(
    x_RA: jax.Array, w_E: tuple[jax.Array, ...], sizes_E: jax.Array, join: Callable[..., jax.Array]
) -> jax.Array:
    """Expert by expert, a block of rows at a time, times what `join` makes of the expert's matrices. What the last
    block of an expert writes over the rows of the next one is written anew by that one."""
    size = _block(x_RA)

    def expert(carry: tuple[jax.Array, jax.Array], given: tuple[tuple, jax.Array]) -> tuple[tuple, None]:
        (start, y), (own, number) = carry, given
        w = join(*own)

        def one(i: jax.Array, y: jax.Array) -> jax.Array:
            at = start + i * size
            return lax.dynamic_update_slice_in_dim(y, lax.dynamic_slice_in_dim(x_RA, at, size) @ w, at, 0)

        return (start + number, lax.fori_loop(0, -(-number // size), one, y)), None

    width = jax.eval_shape(join, *(w[0] for w in w_E)).shape[1]
    empty = jnp.zeros((x_RA.shape[0], width), x_RA.dtype)
    return lax.scan(expert, (jnp.int32(0), empty), (w_E, sizes_E))[0][1]


def _block(x_R: jax.Array) -> int:
    """Rows of a block: as many as `spare` left behind the end."""
    return min(BLOCK, x_R.shape[0] // 2)


def _flat(x_RcB: jax.Array) -> jax.Array:
    return x_RcB.reshape(x_RcB.shape[0], -1)
