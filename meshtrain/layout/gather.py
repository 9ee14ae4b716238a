"""A weight's way from where it is stored to where it is used, and its gradient's way back.

Forward, the constraint makes the compiler insert an all-gather where the weight is stored in more parts than it is
used in (ZeRO-3). Backward, the gradient is constrained to its own class, so that a sum over the batch's axes becomes a
reduce-scatter there, and not the all-reduce that the transpose of the forward constraint would ask for. Where it is to
be scattered over axes of several dims of the activations it goes there in steps: asked for all of them at once, the
compiler gathers the global batch instead and makes only its part of the gradient.
"""

from functools import partial

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding

GATHERED = "gathered_weight"


Steps = tuple[NamedSharding, ...]


def gather_for_use(w: jax.Array, used: NamedSharding, grads: Steps, named: bool) -> jax.Array:
    """`w` in the sharding `used`; the gradient goes through `grads`. Named GATHERED where it is a new copy."""
    gathered = _gather(w, used, grads)
    return checkpoint_name(gathered, GATHERED) if named else gathered


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(w: jax.Array, used: NamedSharding, grads: Steps) -> jax.Array:
    return jax.lax.with_sharding_constraint(w, used)


def _forward(w: jax.Array, used: NamedSharding, grads: Steps) -> tuple[jax.Array, None]:
    return jax.lax.with_sharding_constraint(w, used), None


def _backward(used: NamedSharding, grads: Steps, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    for sharding in grads:
        gradient = jax.lax.with_sharding_constraint(gradient, sharding)
    return (gradient,)


_gather.defvjp(_forward, _backward)
