"""Muon: the momentum of each hidden matrix, made orthogonal by products with itself (Jordan et al. 2024).

That needs whole matrices: where a layout stores them in parts, the devices exchange parts of many for a few whole ones
(layout/whole.py), and the products are shared out as the state is. Its state is that of `optax.contrib.scale_by_muon`.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from meshtrain.layout import ArraySpec, Placement, Tree, map_specs
from meshtrain.layout.whole import WholeMatrices

STEPS = 5  # of the quintic iteration
RMS = 0.2  # of an update's numbers: that of AdamW (Liu et al. 2025)


class MatrixDims(NamedTuple):
    """Which dims of a weight are the inputs and which the outputs of its matrices; all others number matrices."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def scale_by_muon(
    beta: float, eps: float, specs: Tree, matrices: Tree, place: Placement | None
) -> optax.GradientTransformation:
    """Updates of a root mean square of 0.2. matrices: MatrixDims of each weight, None for those that are not Muon's;
    place: None for arrays that are whole."""
    masked = map_specs(lambda spec, dims: (spec, dims) if dims else optax.MaskedNode(), specs, matrices)
    state_of = optax.contrib.scale_by_muon(beta=beta, eps=eps, ns_steps=STEPS)

    def update(updates: Tree, state: Any, params: Tree = None) -> tuple[Tree, Any]:
        mu = optax.tree.update_moment(updates, state.mu, beta, 1)
        count = optax.safe_increment(state.count)
        ahead = jax.tree.map(  # Nesterov's
            lambda m, g: beta * m + (1 - beta) * g,
            optax.tree.bias_correction(mu, beta, optax.safe_increment(count)),
            optax.tree.bias_correction(updates, beta, count),
        )
        made = jax.tree.map(
            lambda x, declared: _orthogonal(x, declared[0], declared[1], state.ns_coeffs, eps, place), ahead, masked
        )
        return made, state._replace(count=count, mu=mu)

    return optax.GradientTransformation(state_of.init, update)


def _orthogonal(
    x: jax.Array, spec: ArraySpec, dims: MatrixDims, coefficients: jax.Array, eps: float, place: Placement | None
) -> jax.Array:
    """All matrices of a weight."""
    whole = None if place is None else WholeMatrices(place, spec, dims.inputs + dims.outputs)
    y = x if whole is None else whole.bring(x)
    more = y.ndim - x.ndim
    inputs, outputs = (tuple(i + more for i in some) for some in dims)
    batch = tuple(i for i in range(y.ndim) if i not in inputs + outputs)
    order = batch + inputs + outputs
    turned = y.transpose(order)
    rows, columns = (math.prod(y.shape[i] for i in some) for some in (inputs, outputs))
    made = newton_schulz(turned.reshape(*turned.shape[: len(batch)], rows, columns), coefficients, eps)
    made = made * (math.sqrt(max(rows, columns)) * RMS)
    made = made.reshape(turned.shape).transpose([order.index(i) for i in range(y.ndim)])
    return made if whole is None else whole.take_back(made)


def newton_schulz(x: jax.Array, coefficients: jax.Array, eps: float) -> jax.Array:
    """[..., rows, columns], all singular values brought near 1: five times f(X) = a X + (b A + c A A) X, A = X X'.

    As a loop: the compiler would take the iterations of all weights side by side, with all of their products in memory.
    """
    a, b, c = coefficients
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + eps)

    def turn(_: int, x: jax.Array) -> jax.Array:
        square = x @ x.mT
        return a * x + (b * square + (c * square) @ square) @ x

    x = jax.lax.fori_loop(0, STEPS, turn, x)
    return x.mT if tall else x
