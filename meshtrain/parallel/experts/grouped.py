"""Products of rows with the matrix of their expert: rows stand expert by expert, and no work is done for empty rows.

On a CPU a loop over blocks of rows, as its compiler would make of `ragged_dot` one product for each expert with *all*
rows; on a GPU `ragged_dot`. The three products are those of a layer and its backward pass; each is linear in rows and
weights, and a caller has its own backward rule.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import RaggedDotDimensionNumbers

BLOCK = 128  # rows of a block: enough for a matrix product to run at full speed

_OUTER = RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[]
)


def rows_times(x_RA: jax.Array, w_EAB: jax.Array, sizes_E: jax.Array, gpu: bool) -> jax.Array:
    """[R, B]: each row times the matrix of its expert. Rows behind the last expert's are 0."""
    if gpu:
        return lax.ragged_dot(x_RA, w_EAB, sizes_E)

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    return _by_block(x_RA, w_EAB, sizes_E, w_EAB.shape[2], block)


def rows_times_transposed(x_RB: jax.Array, w_EAB: jax.Array, sizes_E: jax.Array, gpu: bool) -> jax.Array:
    """[R, A]: each row times the transposed matrix of its expert."""
    if gpu:
        return lax.ragged_dot(x_RB, w_EAB.swapaxes(1, 2), sizes_E)

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.dot_general(x, w, (((1,), (1,)), ((), ())))

    return _by_block(x_RB, w_EAB, sizes_E, w_EAB.shape[1], block)


def outer(x_RA: jax.Array, y_RB: jax.Array, sizes_E: jax.Array, gpu: bool) -> jax.Array:
    """[E, A, B]: the sum over each expert's rows of x y^T: the gradient of its matrix, in float32."""
    if gpu:
        return lax.ragged_dot_general(x_RA, y_RB, sizes_E, _OUTER, preferred_element_type=jnp.float32)
    size, (x, y) = _blocks(x_RA, y_RB)

    def expert(start: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        def add(i: jax.Array, total: jax.Array) -> jax.Array:
            mine = (i * size + jnp.arange(size) < number)[:, None]
            xs, ys = (lax.dynamic_slice_in_dim(a, start + i * size, size) for a in (x, y))
            return total + lax.dot_general(
                jnp.where(mine, xs, 0), ys, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )

        zero = jnp.zeros((x.shape[1], y.shape[1]), jnp.float32)
        return start + number, lax.fori_loop(0, -(-number // size), add, zero)

    return lax.scan(expert, jnp.int32(0), sizes_E)[1]


def _by_block(x_RA: jax.Array, w_EAB: jax.Array, sizes_E: jax.Array, width: int, block: object) -> jax.Array:
    """Expert by expert, a block of rows at a time. What the last block of an expert writes over the rows of the next
    one is written anew by that one; behind the last expert it is wiped out."""
    size, (x,) = _blocks(x_RA)

    def expert(carry: tuple[jax.Array, jax.Array], given: tuple[jax.Array, jax.Array]) -> tuple[tuple, None]:
        (start, y), (w, number) = carry, given

        def one(i: jax.Array, y: jax.Array) -> jax.Array:
            at = start + i * size
            value = block(lax.dynamic_slice_in_dim(x, at, size), w)  # type: ignore[operator]
            return lax.dynamic_update_slice_in_dim(y, value.astype(y.dtype), at, 0)

        return (start + number, lax.fori_loop(0, -(-number // size), one, y)), None

    empty = jnp.zeros((x.shape[0], width), x.dtype)
    (total, y), _ = lax.scan(expert, (jnp.int32(0), empty), (w_EAB, sizes_E))
    y = y[: x_RA.shape[0]]
    return jnp.where((jnp.arange(y.shape[0]) < total)[:, None], y, 0)


def _blocks(*arrays: jax.Array) -> tuple[int, list[jax.Array]]:
    """(rows of a block, the arrays with as many rows more, so that no block reaches beyond the end)."""
    size = min(BLOCK, max(arrays[0].shape[0], 1))
    return size, [jnp.pad(x, ((0, size), (0, 0))) for x in arrays]
