"""A weight's way from where it is stored to where it is used, and its gradient's way back.

Forward, the constraint makes the compiler insert an all-gather where the weight is stored in more parts than it is
used in (ZeRO-3). Backward, the gradient is constrained to its own class, so that a sum over the batch's axes becomes a
reduce-scatter there, and not the all-reduce that the transpose of the forward constraint would ask for.
"""

from functools import partial

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import NamedSharding

GATHERED = "gathered_weight"


def gather_for_use(w: jax.Array, used: NamedSharding, grads: NamedSharding, named: bool) -> jax.Array:
    """`w` in the sharding `used`; the gradient arrives in `grads`. Named GATHERED where it is a new copy."""
    gathered = _gather(w, used, grads)
    return checkpoint_name(gathered, GATHERED) if named else gathered


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(w: jax.Array, used: NamedSharding, grads: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(w, used)


def _forward(w: jax.Array, used: NamedSharding, grads: NamedSharding) -> tuple[jax.Array, None]:
    return jax.lax.with_sharding_constraint(w, used), None


def _backward(used: NamedSharding, grads: NamedSharding, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.with_sharding_constraint(gradient, grads),)


_gather.defvjp(_forward, _backward)
