"""RMSNorm and LayerNorm over the last dim. Statistics, scale and bias in float32 whatever the dtype that comes in.

The backward pass is written out: it keeps the input and one float32 statistic per vector, not the float32 copies that
differentiating line by line would keep. Formulas: Zhang and Sennrich 2019 (RMSNorm), Ba et al. 2016 (LayerNorm).
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from meshtrain.layout import Placement
from meshtrain.model.weight import ONES, ZEROS, add_bias, use, weight


class Norm(nnx.Module):
    """A norm with its scale (and, for "layer", its bias) over vectors of `size` of the dim `dim`."""

    def __init__(self, size: int, dim: str, kind: str, eps: float, plus_one: bool):
        self.kind, self.eps, self.plus_one = kind, eps, plus_one
        self.scale = weight((size,), (dim,), ZEROS if plus_one else ONES)
        self.bias = weight((size,), (dim,), ZEROS) if kind == "layer" else None

    def __call__(self, x: Float[Array, "*any D"], place: Placement) -> Float[Array, "*any D"]:
        scale = use(self.scale, place).astype(jnp.float32) + float(self.plus_one)
        y = normalize(x, scale, self.kind == "layer", self.eps)
        return y if self.bias is None else add_bias(y, use(self.bias, place))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def normalize(x: Float[Array, "*any D"], scale: Float[Array, " D"], center: bool, eps: float) -> Float[Array, "*any D"]:
    """(x - mean) / sqrt(variance + eps) * scale, the mean 0 unless `center`; in x's dtype."""
    return _forward(x, scale, center, eps)[0]


def _standardize(x: jax.Array, center: bool) -> tuple[jax.Array, jax.Array]:
    """x in float32 less its mean (if `center`), and the mean of its squares."""
    wide = x.astype(jnp.float32)
    if center:
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
    return wide, jnp.mean(wide * wide, axis=-1, keepdims=True)


def _forward(x: jax.Array, scale: jax.Array, center: bool, eps: float) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    wide, square = _standardize(x, center)
    return (wide * jax.lax.rsqrt(square + eps) * scale).astype(x.dtype), (x, scale)


def _backward(
    center: bool, eps: float, kept: tuple[jax.Array, jax.Array], dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, scale = kept
    wide, square = _standardize(x, center)
    inverse = jax.lax.rsqrt(square + eps)
    unit = wide * inverse
    dy_wide = dy.astype(jnp.float32)
    dunit = dy_wide * scale
    dx = dunit - unit * jnp.mean(dunit * unit, axis=-1, keepdims=True)
    if center:
        dx = dx - jnp.mean(dunit, axis=-1, keepdims=True)
    dscale = jnp.sum(dy_wide * unit, axis=tuple(range(x.ndim - 1)))
    return (dx * inverse).astype(x.dtype), dscale


normalize.defvjp(_forward, _backward)
