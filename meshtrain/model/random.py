"""Random bits as a function of (key, counter), element by element: Threefry-2x32 with 20 rounds (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3"), the generator of `jax.random`, with the counter in the caller's hands.

An element's bits depend on its key and its counter alone: no sharding, batch or neighbouring array changes them.
Written out, as on a CPU XLA compiles a dozen of `jax.random`'s draws five times slower and runs them at half speed.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA

NUM_LOW = 2**32  # counters that differ in their low word alone
MOST_ROWS = 2**20

# Two words of key, each a scalar or an array that broadcasts against the counters.
Words = tuple[UInt32[Array, "..."], UInt32[Array, "..."]]


def words(key: Key[Array, ""]) -> Words:
    """The two words of a key of `jax.random` (the first two where an implementation has more)."""
    data = jax.random.key_data(key)
    return data[0], data[1]


def threefry(key: Words, high: jax.Array | int, low: jax.Array | int) -> Words:
    """64 random bits for each 64-bit counter (high, low); everything broadcasts, and counters are taken modulo 2^32."""
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = _word(high) + key[0], _word(low) + key[1]
    for turn in range(20):
        rotation = ROTATIONS[turn % 8]
        x = x + y
        y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        if turn % 4 == 3:
            injection = turn // 4 + 1
            x = x + keys[injection % 3]
            y = y + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return x, y


def normal(key: Words, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Float32 numbers of mean 0 and deviation 1. Element [i, j, ..] depends on the key, i and its place in row i."""
    low = jnp.zeros(shape, jnp.uint32)
    high = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    stride = 1
    for dim in range(len(shape) - 1, 0, -1):
        at = jax.lax.broadcasted_iota(jnp.uint32, shape, dim)
        if dim == 1 and math.prod(shape[1:]) > NUM_LOW:  # the many experts of a layer: more than one low word counts
            most = jnp.uint32(NUM_LOW // stride)
            high, at = high + at // most * jnp.uint32(MOST_ROWS), at % most
        low = low + at * jnp.uint32(stride)
        stride *= shape[dim]
    bits, _ = threefry(key, high, low)
    uniform = (bits >> 8).astype(jnp.float32) * 2.0**-23 + (2.0**-24 - 1)  # 2^24 values, symmetric in (-1, 1)
    return jnp.float32(2**0.5) * jax.lax.erf_inv(uniform)


def _word(number: jax.Array | int) -> jax.Array:
    return jnp.uint32(number % 2**32) if isinstance(number, int) else number.astype(jnp.uint32)
