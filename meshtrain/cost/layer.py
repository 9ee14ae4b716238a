"""What one layer holds on one device: traced from the model's own code at the local sizes, never written down twice.

A placement without devices stands in for the real one (local.py), so that every array of the trace has the shape of a
device's part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import config as annotations

from meshtrain.cost.liveness import VIEWS, bodies, called, num_bytes, peak_bytes
from meshtrain.cost.local import ExpertCuts, LocalSizes, local_placement, local_weights
from meshtrain.layout import Placement
from meshtrain.model import ModelConfig
from meshtrain.model.block import run_layers
from meshtrain.model.inputs import make_inputs
from meshtrain.parallel.pipeline.split import Cut, cut, loop_sizes


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

    def scaled(self, double: "LayerMemory", rows: int) -> "LayerMemory":
        """For so many rows: from this memory of one and that of two, along a straight line."""

        def grown(one: int, two: int) -> int:
            return one + (two - one) * (rows - 1)

        arrays = (
            replace(a, num_bytes=grown(a.num_bytes, b.num_bytes))
            for a, b in zip(self.saved, double.saved, strict=True)
        )  # fmt: skip
        return LayerMemory(tuple(arrays), grown(self.forward, double.forward), grown(self.backward, double.backward))


@cache
def layer_memory(
    model: ModelConfig, sizes: LocalSizes, remat: str, dtype: np.dtype, packed: bool, cudnn: bool,
    experts: ExpertCuts | None = None,
) -> LayerMemory:  # fmt: skip
    """The memory of one layer of a model of local sizes (`local_model`), from a trace of its forward and backward.

    cudnn: attention is cuDNN's kernel, of which our own stands in: that one holds no scores, and its results have no
    names, so that no remat policy keeps them.
    """
    with _lengths_change():
        place = local_placement(sizes, remat, not cudnn, experts)
        jaxpr = jax.make_jaxpr(_backward(model, place))(
            *_arguments(model, sizes, dtype, packed or not cudnn, experts)
        ).jaxpr
    num = model.num_layers // len(model.window_layers)
    shape = (sizes.batch, sizes.stream, model.embed)
    forward, backward = (eqn for eqn in _scans(jaxpr) if eqn.params["length"] == num and _carries(eqn, shape))
    saved = list(_saved(forward, model.num_layers))
    if cudnn and remat != "none":
        saved = [array for array in saved if array.name not in CUDNN_UNNAMED]
    return LayerMemory(
        tuple(saved),
        max(peak_bytes(body) for body in bodies(forward)),
        max(peak_bytes(body) for body in bodies(backward)),
    )


@cache
def tape_bytes(
    model: ModelConfig, sizes: LocalSizes, remat: str, dtype: np.dtype, experts: ExpertCuts | None = None
) -> int:
    """Bytes that one layer's backward pass leaves for its weight gradients, where a schedule makes those later.

    Of what the cut hands over, what the later half does something with: the compiler drops the rest.
    """
    place = local_placement(sizes, remat, False, experts)
    halves: list[Cut] = []

    def tape(weights: Any, x: Any, batch: Any) -> Any:
        y, transpose = jax.vjp(_layers(model, place, batch), weights, x)
        residuals, form = jax.tree.flatten(transpose)

        def whole(*arguments: jax.Array) -> list[jax.Array]:
            of_weights, of_x = jax.tree.unflatten(form, arguments[:-1])(arguments[-1])
            return [*jax.tree.leaves(of_weights), of_x]

        later = [False] * len(jax.tree.leaves(weights))
        halves.append(cut(whole, [*residuals, y], [*later, True]))
        return halves[0].now(*residuals, y)[1]

    with _lengths_change():
        kept = jax.eval_shape(tape, *_arguments(model, sizes, dtype, True, experts))
        later = jax.make_jaxpr(halves[0].later)(kept).jaxpr
    used = partial_eval.dce_jaxpr(later, [True] * len(later.outvars))[1]
    return sum(num_bytes(v.aval) for v, is_used in zip(later.invars, used, strict=True) if is_used) // model.num_layers


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


def _arguments(
    model: ModelConfig, sizes: LocalSizes, dtype: np.dtype, packed: bool, experts: ExpertCuts | None
) -> tuple[Any, Any, Any]:
    """Weights of the layers, their input and a batch, as shapes."""
    weights = local_weights(model, experts.parts() if experts else {}, dtype)
    x = jax.ShapeDtypeStruct((sizes.batch, sizes.stream, model.embed), dtype)
    rows = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    batch = {"positions": rows, "index_B": jax.ShapeDtypeStruct((sizes.batch,), jnp.uint32)}
    return weights, x, batch | ({"segments": rows} if packed else {})


def _backward(model: ModelConfig, place: Placement) -> Any:
    """The function (weights, x, batch) -> gradients, of the stack of layers on one device."""

    def backward(weights: Any, x: Any, batch: Any) -> Any:
        y, transpose = jax.vjp(_layers(model, place, batch), weights, x)
        return transpose(y)

    return backward


def _layers(model: ModelConfig, place: Placement, batch: Any) -> Any:
    """The function (weights, x) -> x of the stack of layers on one device."""
    given = make_inputs(batch, model, place, jax.random.key(0) if model.dropout else None)
    return lambda weights, x: run_layers(weights, x, model, given)[0]


def _carries(eqn: Any, shape: tuple[int, ...]) -> bool:
    """Whether a loop hands on the residual stream, or its gradient."""
    return any(v.aval.shape == shape for v in eqn.outvars[: loop_sizes(eqn.params)[1]])


def _saved(forward: Any, num_layers: int) -> Iterator[Saved]:
    """What the scan over layers stacks for the backward pass, by layer."""
    body = next(iter(bodies(forward)))
    made = dict(_makers(body))
    first = loop_sizes(forward.params)[1]
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
