"""Rotary positions: frequencies of each kind of scaling, tables of cos and sin in float32, and the rotation.

A phase is position x frequency, and float32 alone loses it at large positions (at 131,071 it would be off by 0.004
radians). So the phase is counted in turns, in fixed point: the product modulo 2^32 of integers is exact, and only the
fraction of a turn that is left becomes a float. The error is a few float32 units at every position below 2^31.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from meshtrain.model.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> tuple[np.ndarray, float]:
    """Radians per position of each pair of a head, float64 [rotary_dim / 2], and the factor on cos and sin.

    Su et al. 2021 (RoFormer): theta^(-2i / rotary_dim). Scaling as in Hugging Face transformers' `modeling_rope_utils`:
    linear (Chen et al. 2023), llama3 (Llama 3.1's published code), yarn (Peng et al. 2023).
    """
    base = config.rope_theta ** -(np.arange(0, config.rotary_dim, 2, dtype=np.float64) / config.rotary_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return base, 1.0
    if scaling.kind == "linear":
        return base / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(base, scaling), 1.0
    return _yarn(base, scaling, config), _yarn_attention_factor(scaling)


def _llama3(base: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Wavelengths under length / high stay, above length / low are stretched by factor, a linear blend between them."""
    assert scaling.original_length is not None
    turns = scaling.original_length * base / (2 * math.pi)  # full turns within the original length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * base + (1 - keep) * base / scaling.factor


def _yarn(base: np.ndarray, scaling: RopeScaling, config: ModelConfig) -> np.ndarray:
    """Pairs before the ramp stay, pairs after it are stretched by factor; the ramp's ends are where a pair makes
    beta_fast and beta_slow turns within the original length."""
    length = scaling.original_length
    assert length is not None

    def pair(num_turns: float) -> float:
        turn_length = length / (num_turns * 2 * math.pi)
        return config.rotary_dim * math.log(turn_length) / (2 * math.log(config.rope_theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    stretch = np.clip((np.arange(config.rotary_dim // 2) - low) / (high - low), 0.0, 1.0)
    return (1 - stretch) * base + stretch * base / scaling.factor


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    """term(1), or the quotient of two such terms where both mscales are given (DeepSeek)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return scaling.term(scaling.mscale) / scaling.term(scaling.mscale_all_dim)
    return scaling.term(1.0)


def rotary_tables(
    positions_BT: Int[Array, "B T"], config: ModelConfig
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """cos and sin of each pair's phase at each position, float32 [B, T, rotary_dim / 2]. Positions are not negative."""
    radians, factor = frequencies(config)
    turns = np.ldexp(radians / (2 * math.pi), 32)  # in units of 2^-32 of a turn
    whole = np.floor(turns)
    rest = jnp.asarray(np.ldexp(turns - whole, -32), jnp.float32)
    count = jnp.asarray(positions_BT)[..., None]
    wrapped = count.astype(jnp.uint32) * jnp.asarray(whole.astype(np.uint64) % 2**32, jnp.uint32)
    fraction = jax.lax.bitcast_convert_type(wrapped, jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-32)
    phase = (fraction + count.astype(jnp.float32) * rest) * jnp.float32(2 * math.pi)
    return jnp.cos(phase) * jnp.float32(factor), jnp.sin(phase) * jnp.float32(factor)


def rotate(
    x_BTNH: Float[Array, "B T N H"],
    tables: tuple[Float[Array, "B T half"], Float[Array, "B T half"]],
    interleaved: bool = False,
) -> Float[Array, "B T N H"]:
    """Each pair turned by its phase, in float32; in x's dtype. Pair i is (i, i + H / 2); interleaved: (2i, 2i + 1)."""
    cos, sin = (table[:, :, None, :] for table in tables)
    wide = x_BTNH.astype(jnp.float32)
    pairs = wide.reshape(*wide.shape[:-1], -1, 2) if interleaved else wide.reshape(*wide.shape[:-1], 2, -1)
    first, second = (pairs[..., 0], pairs[..., 1]) if interleaved else (pairs[..., 0, :], pairs[..., 1, :])
    turned = first * cos - second * sin, second * cos + first * sin
    joined = jnp.stack(turned, axis=-1).reshape(wide.shape) if interleaved else jnp.concatenate(turned, axis=-1)
    return joined.astype(x_BTNH.dtype)
