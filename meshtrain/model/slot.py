"""A slot of a stack of layers that may be without a layer: then nothing is computed, and nothing but zeros is kept.

Its own rule for the backward pass: that of a branch keeps all that the branch has read, the weights among it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from meshtrain.parallel.pipeline.residuals import Form, put_together, take_apart

Layer = Callable[[jax.Array, tuple[Any, ...]], tuple[jax.Array, Any]]


def where_real(layer: Layer, same: Layer, real: jax.Array, x: jax.Array, scanned: tuple[Any, ...]) -> Any:
    """layer(x, scanned) where `real`, else same(x, scanned), which must pass `x` on and give the same tree.

    scanned: (weights, weights, what is not differentiated, ..).
    """
    forms: list[Form] = []  # of the newest backward pass; all of them are alike

    @jax.custom_vjp
    def run(real: jax.Array, x: jax.Array, scanned: tuple[Any, ...]) -> Any:
        return jax.lax.cond(real, layer, same, x, scanned)

    def kept(x: jax.Array, scanned: tuple[Any, ...]) -> tuple[Any, list[jax.Array]]:
        weights, others = scanned[:2], scanned[2:]
        out, transpose = jax.vjp(lambda x, weights: layer(x, (*weights, *others)), x, weights)
        form, arrays = take_apart(transpose, weights)
        forms[:] = [form]
        return out, arrays

    def forward(real: jax.Array, x: jax.Array, scanned: tuple[Any, ...]) -> tuple[Any, Any]:
        empty = jax.eval_shape(kept, x, scanned)[1]

        def none(x: jax.Array, scanned: tuple[Any, ...]) -> tuple[Any, list[jax.Array]]:
            return same(x, scanned), [jnp.zeros(array.shape, array.dtype) for array in empty]

        out, arrays = jax.lax.cond(real, kept, none, x, scanned)
        return out, (real, arrays, scanned)

    def backward(saved: Any, d_out: Any) -> tuple[Any, ...]:
        real, arrays, scanned = saved
        weights = scanned[:2]
        d_x, d_weights = jax.lax.cond(
            real,
            lambda: put_together(forms[0], weights, arrays)(d_out),
            lambda: (d_out[0], jax.tree.map(jnp.zeros_like, weights)),
        )
        return None, d_x, (*d_weights, *(None for _ in scanned[2:]))

    run.defvjp(forward, backward)
    return run(real, x, scanned)
