"""A matrix product with weights as they are stored: gathered inside, and gathered again for the backward pass.

Whatever the layout's remat policy, the gathered (or joined) copy of a weight lives only while it is used: the product
keeps its input and the stored slices, as in ZeRO-3. The product itself is never done twice for that.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.layout import Placement


class Plan(NamedTuple):
    """What a product does, all of it static."""

    equation: str
    dims: tuple[tuple[str, ...], ...]
    place: Placement
    join: Callable[..., jax.Array] | None

    def weight(self, *stored: jax.Array) -> jax.Array:
        """The weights gathered over the axes that only store them, and joined to one."""
        gathered = [self.place.at_use(w, *dims) for w, dims in zip(stored, self.dims, strict=True)]
        return gathered[0] if self.join is None else self.join(*gathered)


def product(
    equation: str,
    x: Float[Array, "..."],
    params: Sequence[nnx.Param],
    place: Placement,
    join: Callable[..., jax.Array] | None = None,
) -> Float[Array, "..."]:
    """einsum(equation, x, w) with the weight `params[0]`, or with `join` of several weights; in x's dtype."""
    plan = Plan(equation, tuple(param.get_metadata("dims") for param in params), place, join)
    return _product(plan, x, *(param[...] for param in params))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(plan: Plan, x: jax.Array, *stored: jax.Array) -> jax.Array:
    return jnp.einsum(plan.equation, x, plan.weight(*stored))


def _forward(plan: Plan, x: jax.Array, *stored: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _product(plan, x, *stored), (x, *stored)


def _backward(plan: Plan, kept: tuple[jax.Array, ...], dy: jax.Array) -> tuple[Any, ...]:
    x, *stored = kept
    weight, split = jax.vjp(plan.weight, *stored)
    of_x, of_weight, of_y = plan.equation.replace("->", ",").split(",")
    if of_y == "btd":  # where the stream is cut: gathered here once, and not by each of the two products
        dy = plan.place.constrain(dy, "batch", "length", "embed")
    dx = jnp.einsum(f"{of_y},{of_weight}->{of_x}", dy, weight)
    # x stands left, so that the matrix which a CPU must transpose is the smaller one
    return dx, *split(jnp.einsum(f"{of_x},{of_y}->{of_weight}", x, dy))


_product.defvjp(_forward, _backward)
