"""One device's part of a model: its sizes, and a placement that stands in for the real one while a layer is traced.

Where the model fixes a sharding the stand-in changes the length as the collective there would (gathered or scattered);
the exchange of tokens with experts runs as it is, over the real axes, on arrays that are one device's parts already.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from meshtrain.layout import ArraySpec, Layout, MeshShape, Placement, abstract_mesh, map_specs
from meshtrain.layout.experts import Experts
from meshtrain.layout.inventory import local_shape
from meshtrain.layout.rules import Rules, entry_axes
from meshtrain.model import ModelConfig, describe


@dataclass(frozen=True)
class LocalSizes:
    """One device's part of a microbatch: sequences, their positions in attention and MLP, and in the stream."""

    batch: int
    length: int
    stream: int


@dataclass(frozen=True, eq=False)
class LocalPlacement(Placement):
    """One device; `constrain` gives an array the local length of its dims. Without rules but those of experts."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    gpu: bool = False  # whether kernels are chosen as on a GPU
    experts: "LocalPlacement | None" = None

    @property
    def platform(self) -> str:
        """As the kernels ask for it."""
        return "gpu" if self.gpu else ""

    @property
    def of_experts(self) -> Placement:
        """The placement with the axes of the real one."""
        return self.experts or self

    @property
    def in_parts(self) -> bool:
        """Arrays are this device's parts."""
        return True

    def constrain(self, x: jax.Array, *dims: str) -> jax.Array:
        """The part of `x` that a device has under these dims: longer after a gather, shorter after a scatter."""
        for at, dim in enumerate(dims):
            x = _of_length(x, at, self.sizes.get(dim, x.shape[at]))
        return x

    def at_use(self, w: jax.Array, *dims: str) -> jax.Array:
        """The weight, which is this device's as it is used."""
        return w

    def part(self, x: jax.Array, spec: PartitionSpec, result: bool = False) -> jax.Array:
        """Tokens of the stream, gathered where `spec` cuts their length as in attention and MLP; results go back."""
        if len(spec) != 2:  # (of tokens are batch and length cut, and no more)
            return x
        if result:
            return _of_length(x, 1, self.sizes["stream"])
        whole = self.size(entry_axes(spec[1])) == self.num_shards("length")
        return _of_length(x, 1, self.sizes["length"]) if whole else x


def _of_length(x: jax.Array, at: int, size: int) -> jax.Array:
    if size > x.shape[at]:
        return jnp.concatenate([x] * (size // x.shape[at]), axis=at)
    return jax.lax.slice_in_dim(x, 0, size, axis=at) if size < x.shape[at] else x


@dataclass(frozen=True)
class _OfWholeRows(Experts):
    """A layout's section for a device's part of rows: capacities are those of whole rows of `row` tokens."""

    row: int = 0

    def capacity(self, length: int, top_k: int, num_experts: int) -> int | None:
        """As of the whole row that `length` is a part of."""
        return super().capacity(self.row, top_k, num_experts)


@dataclass(frozen=True)
class ExpertCuts:
    """What the exchange of tokens with experts depends on: the axes that cut experts, tokens and the stream, with their
    sizes; the rows of weights and of activations; the layout's section."""

    axes: tuple[tuple[str, int], ...]
    use: tuple[tuple[str, tuple[str, ...]], ...]
    activations: tuple[tuple[str, tuple[str, ...]], ...]
    dispatch: Experts
    mlp: int  # parts of the MLP that all tokens share

    @classmethod
    def of(cls, place: Placement, model: ModelConfig) -> "ExpertCuts | None":
        """Those of a placement; None for a model without experts. Axes that cut the batch alone are left out: they do
        not change what a device holds."""
        if model.moe is None:
            return None
        use = {dim: place.axes(dim, "use") for dim in ("expert", "expert_mlp")}
        tokens = {dim: place.axes(dim) for dim in ("length", "stream")}
        kept = {axis for row in (*use.values(), *tokens.values()) for axis in row}
        tokens["batch"] = tuple(axis for axis in place.axes("batch") if axis in kept)
        axes = tuple((axis, size) for axis, size in place.axis_sizes.items() if axis in kept)
        return cls(
            axes, tuple(use.items()), tuple(tokens.items()), place.layout.experts, place.num_shards("mlp", "use")
        )

    def section(self, length: int) -> Experts:
        """The layout's section, for a device that has `length` tokens of a row."""
        parts = math.prod(dict(self.axes)[axis] for axis in dict(self.activations)["length"])
        return _OfWholeRows(self.dispatch.dispatch, self.dispatch.capacity_factor, length * parts)

    def placement(self, lengths: Mapping[str, int]) -> LocalPlacement:
        """One device of these axes."""
        rules, activations = (Rules(dict(rows), {}) for rows in (self.use, self.activations))
        layout = Layout(MeshShape(dict(self.axes)), rules, activations, experts=self.section(lengths["length"]))
        return LocalPlacement(layout, abstract_mesh(dict(self.axes)), lengths, gpu=True)

    def parts(self) -> dict[str, int]:
        """Dim -> into how many parts it is cut in weights, of those that `local_model` leaves whole."""
        sizes = dict(self.axes)
        found = {dim: math.prod(sizes[axis] for axis in axes) for dim, axes in self.use}
        return found | {"mlp": self.mlp}


def local_placement(sizes: LocalSizes, remat: str, gpu: bool, experts: ExpertCuts | None) -> LocalPlacement:
    """The stand-in for a placement. gpu: whether attention is our own kernel, with the tiles of a GPU."""
    lengths = dict(length=sizes.length, stream=sizes.stream)
    if experts is None:
        return LocalPlacement(Layout(MeshShape({}), remat=remat), abstract_mesh({}), lengths, gpu)
    bare = Layout(MeshShape({}), remat=remat, experts=experts.section(sizes.length))
    return LocalPlacement(bare, abstract_mesh({}), lengths, gpu, experts.placement(lengths))


def local_model(model: ModelConfig, place: Placement) -> ModelConfig:
    """The model whose whole is one device's part of this one: heads and widths as the layout cuts them; experts all, as
    the router chooses among them (a device's weights are `local_weights`). The few dense layers of a model with experts
    count as layers with experts."""
    kv = ArraySpec((model.num_kv_heads,), np.dtype(np.float32), ("kv_heads",))
    num_heads = model.num_heads // place.num_shards("heads", "use")
    return replace(
        model,
        num_layers=2 * len(model.window_layers),
        num_heads=num_heads,
        # of heads that a group holds in copies a device needs no more than it has queries for
        num_kv_heads=math.gcd(num_heads, local_shape(place, "activations", kv)[0]),
        mlp=model.mlp // place.num_shards("mlp", "use"),
        moe=model.moe and replace(model.moe, first_dense=0, every=1),
    )


def local_weights(model: ModelConfig, cuts: Mapping[str, int], dtype: np.dtype) -> Any:
    """The layers' weights of a local model, as shapes. cuts: parts of the dims that `local_model` leaves whole."""

    def local(spec: ArraySpec) -> jax.ShapeDtypeStruct:
        shape = tuple(size // cuts.get(dim, 1) for dim, size in zip(spec.dims, spec.shape, strict=True))
        return jax.ShapeDtypeStruct(shape, np.dtype(np.float32) if "router" in spec.dims else dtype)

    return map_specs(local, describe(model)["layers"])


def local_sizes(place: Placement, rows: int, length: int) -> LocalSizes:
    """For `rows` sequences on each device."""
    return LocalSizes(rows, length // place.num_shards("length"), length // place.num_shards("stream"))
