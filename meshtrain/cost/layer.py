"""What one layer holds on one device: traced from the model's own code at the local sizes, never written down twice.

A placement without devices stands in for the real one: where the model fixes a sharding it changes the length as the
collective there would (gathered or scattered), so that every array of the trace has the shape of a device's part.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import config as annotations

from meshtrain.cost.liveness import VIEWS, bodies, called, num_bytes, peak_bytes
from meshtrain.layout import ArraySpec, Layout, Placement, abstract_mesh, map_specs
from meshtrain.layout.inventory import local_shape
from meshtrain.layout.mesh import MeshShape
from meshtrain.model import ModelConfig, MoEConfig, describe
from meshtrain.model.block import run_layers
from meshtrain.model.inputs import make_inputs
from meshtrain.parallel.pipeline.split import cut


@dataclass(frozen=True)
class LocalSizes:
    """One device's part of a microbatch: sequences, their positions in attention and MLP, and in the stream."""

    batch: int
    length: int
    stream: int


@dataclass(frozen=True, eq=False)
class LocalPlacement(Placement):
    """One device without rules; `constrain` gives an array the local length of its dims."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    gpu: bool = False  # whether the tiles of the blockwise kernel are those of a GPU

    @property
    def platform(self) -> str:
        """As the kernel asks for it."""
        return "gpu" if self.gpu else ""

    def constrain(self, x: jax.Array, *dims: str) -> jax.Array:
        """The part of `x` that a device has under these dims: longer after a gather, shorter after a scatter."""
        for at, dim in enumerate(dims):
            size = self.sizes.get(dim, x.shape[at])
            if size > x.shape[at]:
                x = jnp.concatenate([x] * (size // x.shape[at]), axis=at)
            elif size < x.shape[at]:
                x = jax.lax.slice_in_dim(x, 0, size, axis=at)
        return x


@dataclass(frozen=True)
class Saved:
    """An array that one layer keeps for its backward pass: shape, dtype and bytes on one device; the name that the
    model gives it, "" for none; whether it was gathered before it was kept."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    name: str = ""
    gathered: bool = False


@dataclass(frozen=True)
class LayerMemory:
    """saved: what a layer keeps. forward, backward: bytes of one layer's buffers alive at once, without what is saved
    or stored."""

    saved: tuple[Saved, ...]
    forward: int
    backward: int

    @property
    def saved_bytes(self) -> int:
        """Bytes that one layer keeps."""
        return sum(array.num_bytes for array in self.saved)

    def scaled(self, double: "LayerMemory", tokens: float) -> "LayerMemory":
        """For `tokens` times as many tokens: from this memory and that of twice its tokens, along a straight line."""

        def grown(one: int, two: int) -> int:
            return round(one + (two - one) * (tokens - 1))

        arrays = (
            replace(a, num_bytes=grown(a.num_bytes, b.num_bytes))
            for a, b in zip(self.saved, double.saved, strict=True)
        )  # fmt: skip
        return LayerMemory(tuple(arrays), grown(self.forward, double.forward), grown(self.backward, double.backward))


def local_model(model: ModelConfig, place: Placement) -> ModelConfig:
    """The model whose whole is one device's part of this one: heads and widths as the layout cuts them."""
    kv = ArraySpec((model.num_kv_heads,), np.dtype(np.float32), ("kv_heads",))
    return replace(
        model,
        num_layers=2 * len(model.window_layers),
        num_heads=model.num_heads // place.num_shards("heads", "use"),
        num_kv_heads=local_shape(place, "activations", kv)[0],
        mlp=model.mlp // place.num_shards("mlp", "use"),
        moe=local_experts(model, place),
    )


def local_experts(model: ModelConfig, place: Placement) -> MoEConfig | None:
    """One device's experts, in every layer: the few dense layers of a model count as layers with experts."""
    if model.moe is None:
        return None
    number = model.moe.num_experts // place.num_shards("expert", "use")
    return replace(
        model.moe,
        num_experts=number,
        top_k=min(model.moe.top_k, number),
        mlp=model.moe.mlp // place.num_shards("expert_mlp", "use"),
        num_groups=1,
        top_groups=1,
        first_dense=0,
        every=1,
    )


def local_sizes(place: Placement, rows: int, length: int) -> LocalSizes:
    """For `rows` sequences on each device."""
    return LocalSizes(rows, length // place.num_shards("length"), length // place.num_shards("stream"))


@cache
def layer_memory(
    model: ModelConfig, sizes: LocalSizes, remat: str, dtype: np.dtype, packed: bool, cudnn: bool
) -> LayerMemory:
    """The memory of one layer of a model of local sizes (`local_model`), from a trace of its forward and backward.

    cudnn: attention is cuDNN's kernel, of which our own stands in: that one holds no scores, its results have no names,
    so that no remat policy keeps them, and without remat its output is kept twice, as it comes and masked.
    """
    with _lengths_change():
        jaxpr = jax.make_jaxpr(_backward(model, sizes, remat, not cudnn))(
            *_arguments(model, sizes, dtype, packed or not cudnn)
        ).jaxpr
    num = model.num_layers // len(model.window_layers)
    shape = (sizes.batch, sizes.stream, model.embed)
    forward, backward = (eqn for eqn in _scans(jaxpr) if eqn.params["length"] == num and _carries(eqn, shape))
    saved = list(_saved(forward, model.num_layers))
    if cudnn:
        results = [array for array in saved if array.name in CUDNN_UNNAMED]
        if remat != "none":
            saved = [array for array in saved if array not in results]
        else:
            saved += [replace(array, name="attention_out masked") for array in results if len(array.shape) == 4]
    return LayerMemory(
        tuple(saved),
        max(peak_bytes(body) for body in bodies(forward)),
        max(peak_bytes(body) for body in bodies(backward)),
    )


@cache
def tape_bytes(model: ModelConfig, sizes: LocalSizes, remat: str, dtype: np.dtype) -> int:
    """Bytes that one layer's backward pass leaves for its weight gradients, where a schedule makes those later."""

    def tape(weights: Any, x: Any, batch: Any) -> Any:
        y, transpose = jax.vjp(_layers(model, sizes, remat, batch, gpu=False), weights, x)
        residuals, form = jax.tree.flatten(transpose)

        def whole(*arguments: jax.Array) -> list[jax.Array]:
            of_weights, of_x = jax.tree.unflatten(form, arguments[:-1])(arguments[-1])
            return [*jax.tree.leaves(of_weights), of_x]

        later = [False] * len(jax.tree.leaves(weights))
        return cut(whole, [*residuals, y], [*later, True]).now(*residuals, y)[1]

    with _lengths_change():
        kept = jax.eval_shape(tape, *_arguments(model, sizes, dtype, packed=True))
    return sum(num_bytes(form) for form in jax.tree.leaves(kept)) // model.num_layers


@contextmanager
def _lengths_change() -> Iterator[None]:
    """Annotations are not checked in a trace: a sharding that is fixed changes no length of an array, here it does."""
    before = annotations.jaxtyping_disable
    annotations.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        annotations.update("jaxtyping_disable", before)


CUDNN_UNNAMED = ("attention_out", "attention_lse")


def _arguments(model: ModelConfig, sizes: LocalSizes, dtype: np.dtype, packed: bool) -> tuple[Any, Any, Any]:
    """Weights of the layers, their input and a batch, as shapes."""
    weights = map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, dtype), describe(model)["layers"])
    x = jax.ShapeDtypeStruct((sizes.batch, sizes.stream, model.embed), dtype)
    rows = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    batch = {"positions": rows, "index_B": jax.ShapeDtypeStruct((sizes.batch,), jnp.uint32)}
    return weights, x, batch | ({"segments": rows} if packed else {})


def _backward(model: ModelConfig, sizes: LocalSizes, remat: str, gpu: bool) -> Any:
    """The function (weights, x, batch) -> gradients, of the stack of layers on one device."""

    def backward(weights: Any, x: Any, batch: Any) -> Any:
        y, transpose = jax.vjp(_layers(model, sizes, remat, batch, gpu), weights, x)
        return transpose(y)

    return backward


def _layers(model: ModelConfig, sizes: LocalSizes, remat: str, batch: Any, gpu: bool) -> Any:
    """The function (weights, x) -> x of the stack of layers on one device."""
    lengths = dict(length=sizes.length, stream=sizes.stream)
    place = LocalPlacement(Layout(MeshShape({}), remat=remat), abstract_mesh({}), lengths, gpu)
    given = make_inputs(batch, model, place, jax.random.key(0) if model.dropout else None)
    return lambda weights, x: run_layers(weights, x, model, given)[0]


def _carries(eqn: Any, shape: tuple[int, ...]) -> bool:
    """Whether a loop hands on the residual stream, or its gradient."""
    return any(v.aval.shape == shape for v in eqn.outvars[: eqn.params["num_carry"]])


def _saved(forward: Any, num_layers: int) -> Iterator[Saved]:
    """What the scan over layers stacks for the backward pass, by layer."""
    body = next(iter(bodies(forward)))
    made = dict(_makers(body))
    first = forward.params["num_carry"]
    for inner, outer in zip(body.outvars[first:], forward.outvars[first:], strict=True):
        name = ""
        at: Any = inner
        while id(at) in made and (eqn := made[id(at)]).primitive.name in VIEWS:
            name = name or eqn.params.get("name", "")
            at = eqn.invars[0]
        source = made.get(id(at))
        gathered = source is not None and source.primitive.name == "concatenate" and source.params["dimension"] == 1
        aval: Any = outer.aval
        yield Saved(aval.shape[1:], str(aval.dtype), num_bytes(aval) // num_layers, name, gathered)


def _makers(jaxpr: Any) -> Iterator[tuple[int, Any]]:
    """(value, the op that makes it), with calls inlined."""
    for eqn in jaxpr.eqns:
        inner = called(eqn)
        if inner is None:
            yield from ((id(v), eqn) for v in eqn.outvars)
        else:
            made = dict(_makers(inner))
            yield from made.items()
            pairs = zip(eqn.outvars, inner.outvars, strict=True)
            yield from ((id(outside), made[id(v)]) for outside, v in pairs if id(v) in made)


def _scans(jaxpr: Any) -> Iterator[Any]:
    """The loops of a program, those of the calls in it included, in order."""
    for eqn in jaxpr.eqns:
        inner = called(eqn)
        if inner is not None:
            yield from _scans(inner)
        elif eqn.primitive.name == "scan":
            yield eqn
