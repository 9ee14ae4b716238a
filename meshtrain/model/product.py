"""A matrix product with weights as they are stored: gathered inside, and gathered again for the backward pass.

Whatever the layout's remat policy, the gathered (or joined) copy of a weight lives only while it is used: the product
keeps its input and the stored slices, as in ZeRO-3. The product itself is never done twice for that.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.layout import Placement


def product(
    equation: str,
    x: Float[Array, "..."],
    params: Sequence[nnx.Param],
    place: Placement,
    join: Callable[..., jax.Array] | None = None,
) -> Float[Array, "..."]:
    """einsum(equation, x, w) with the weight `params[0]`, or with `join` of several weights; in x's dtype."""
    dims = [param.get_metadata("dims") for param in params]

    # Forward and backward run in different loops, so common subexpressions are no danger to the recomputed gather.
    @partial(jax.checkpoint, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
    def apply(x: jax.Array, *weights: jax.Array) -> jax.Array:
        gathered = [place.at_use(w, *names) for w, names in zip(weights, dims, strict=True)]
        return jnp.einsum(equation, x, gathered[0] if join is None else join(*gathered))

    return apply(x, *(param[...] for param in params))
