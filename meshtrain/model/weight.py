"""Weights as declarations: an `nnx.Param` that holds a shape instead of numbers, its dims, and how it starts.

A module is built without memory and without random numbers. `specs` reads what it declares; `draw` makes the numbers,
each array from (key, its path, its layer) alone, so that no mesh, no layout and no other weight changes them.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from meshtrain.layout import ArraySpec, Placement
from meshtrain.model import random

# How a weight starts: all of one value, or normal with this standard deviation.
Start = tuple[str, float]
ONES: Start = ("constant", 1.0)
ZEROS: Start = ("constant", 0.0)


def normal(std: float) -> Start:
    """Independent normal numbers of mean 0."""
    return ("normal", std)


def weight(shape: tuple[int, ...], dims: tuple[str, ...], start: Start) -> nnx.Param:
    """Declares a float32 weight of one layer; `specs` and `draw` add the dim of the stacked layers."""
    return nnx.Param(jax.ShapeDtypeStruct(shape, jnp.float32), dims=dims, start=start)


def use(param: nnx.Param, place: Placement) -> jax.Array:
    """The numbers of a weight where they are computed with: gathered over the axes that only store it (ZeRO-3)."""
    return place.at_use(param[...], *param.get_metadata("dims"))


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + bias in y's dtype. The sum is float32, and so is, backward, that of the bias's gradient over all tokens."""
    return (y.astype(jnp.float32) + bias.astype(jnp.float32)).astype(y.dtype)


def specs(module: nnx.Module, num_layers: int | None = None, stacked: str = "layers") -> dict[str, Any]:
    """Nested dict of ArraySpec of what a module declares, with a leading dim `stacked` where num_layers is given."""

    def spec(param: nnx.Param) -> ArraySpec:
        shape, dims = param.get_value().shape, param.get_metadata("dims")
        if num_layers is not None:
            shape, dims = (num_layers, *shape), (stacked, *dims)
        return ArraySpec(shape, np.dtype(np.float32), dims)

    return _nest({path: spec(param) for path, param in nnx.to_flat_state(nnx.state(module))})


def draw(module: nnx.Module, key: jax.Array, prefix: str = "", num_layers: int | None = None) -> dict[str, Any]:
    """Nested dict of the first numbers of a module's weights, float32. Layer i's do not depend on num_layers."""

    def numbers(path: tuple[str, ...], param: nnx.Param) -> jax.Array:
        shape, (kind, value) = param.get_value().shape, param.get_metadata("start")
        shape = shape if num_layers is None else (num_layers, *shape)
        if kind == "constant":
            return jnp.full(shape, value, jnp.float32)
        name = "/".join((prefix, *path) if prefix else path)
        return value * random.normal(random.threefry(random.words(key), 0, zlib.crc32(name.encode())), shape)

    return _nest({path: numbers(path, param) for path, param in nnx.to_flat_state(nnx.state(module))})


def _nest(flat: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, leaf in flat.items():
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = leaf
    return nested
