"""What weights and their gradients send: to where they are used, to where they are summed, and back from the update.

momentum -> whole matrices and back          two all-to-alls a step for each dim that is cut   (Muon)
masters (optimizer rows) -> params rows      an all-gather a step, of the compute dtype       (ZeRO-1, ZeRO-2)
params rows -> use                           an all-gather a use, forward and backward         (ZeRO-3)
gradient in use -> gradient rows             a reduce-scatter over the axes that these rows add, an all-reduce over
                                             the other axes of the activations that it comes from
"""

from collections.abc import Iterator

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.muon import whole_matrices
from meshtrain.cost.traffic.experts import expert_axes
from meshtrain.cost.traffic.setting import Setting
from meshtrain.cost.traffic.turns import Passes
from meshtrain.layout import ArraySpec, named_specs
from meshtrain.layout.dims import STACKS
from meshtrain.layout.inventory import axes_of
from meshtrain.layout.rules import Axes
from meshtrain.parallel.shard import without
from meshtrain.step.gradients import joined_once
from meshtrain.step.optimizer import decays
from meshtrain.step.state import state_specs

FLOAT32 = np.dtype(np.float32)

# Matrices that stand side by side while they are used: their gradient is one array (model/attention.py, latent.py,
# mlp.py). The first of each kind of attention only where no axis cuts them unlike each other.
JOINED = (
    ("attention/query", "attention/key", "attention/value"),
    ("attention/query_down", "attention/kv_down", "attention/key_rope"),
    ("attention/key_up", "attention/value_up"),
    ("mlp/gate", "mlp/up"),
    ("moe/shared/gate", "moe/shared/up"),
)


def weight_traffic(setting: Setting) -> list[Collective]:
    """Of all weights; a gradient in the order in which it is reduced."""
    found: list[Collective] = []
    for path, spec in weights(setting):
        found += _to_whole(setting, path, spec) + _from_update(setting, path, spec) + _to_use(setting, path, spec)
    for path, spec, size in _gradients(setting):
        found += _each_time(setting, path, spec, size)
    for path, spec in weights(setting):
        found += [] if path.endswith("router/bias") else _once(setting, path, spec)
    return found


def weights(setting: Setting) -> list[tuple[str, ArraySpec]]:
    """(path, spec in logical shape) of every weight."""
    return named_specs(state_specs(setting.config.model, setting.config.optimizer).params)


def in_stack(spec: ArraySpec) -> bool:
    """Whether a weight is one of stacked layers."""
    return any(dim in STACKS for dim in spec.dims)


def in_layers(spec: ArraySpec) -> bool:
    """Whether it is one of the layers that a pipeline cuts."""
    return STACKS[0] in spec.dims


def one_layer(spec: ArraySpec) -> ArraySpec:
    """The weight of one layer of its stack."""
    kept = [i for i, dim in enumerate(spec.dims) if dim not in STACKS]
    return ArraySpec(tuple(spec.shape[i] for i in kept), spec.dtype, tuple(spec.dims[i] for i in kept))


def is_matrix(path: str, spec: ArraySpec) -> bool:
    """Whether the weight is one of a matrix product in a layer, gathered anew for its backward pass. (That of a router
    is kept.)"""
    return in_stack(spec) and decays(spec) and not path.endswith("norm/scale") and "router" not in spec.dims


def _passes(setting: Setting, spec: ArraySpec) -> Passes:
    """How often the layers run that a stacked weight is of."""
    return setting.turns.stack if in_layers(spec) else setting.turns.dense


def _dtype(setting: Setting, spec: ArraySpec) -> np.dtype:
    """Of the copy that computes."""
    return setting.config.precision.compute_specs(spec).dtype


def _gather(
    setting: Setting, spec: ArraySpec, before: str, after: str, dtype: np.dtype, count: int, phase: str, why: str
) -> list[Collective]:
    """From the rows of one class to those of another that cut it less: an all-gather for each dim, the last first."""
    stored, wanted = axes_of(setting.place, before, spec), axes_of(setting.place, after, spec)
    held = setting.weight(spec, before, dtype)
    found: list[Collective] = []
    for dim in reversed(range(len(spec.dims))):
        axes = without(stored[dim], wanted[dim])
        held *= setting.place.size(axes)
        found += setting.make("all_gather", axes, held, count, phase, spec.dims[dim], why)
    return found


def _to_whole(setting: Setting, path: str, spec: ArraySpec) -> list[Collective]:
    """What Muon exchanges to have whole matrices, and to bring their updates back: float32, as the moments are."""
    whole = whole_matrices(setting.config.optimizer, setting.place, spec)
    if whole is None:
        return []
    return [
        one for dim in whole.cut
        for one in setting.make("all_to_all", whole.axes(dim), whole.num_bytes, 2, "update", spec.dims[dim],
                                f"{path}: whole matrices for Muon, and back")
    ]  # fmt: skip


def _from_update(setting: Setting, path: str, spec: ArraySpec) -> list[Collective]:
    why = f"{path}: updated weights to their rows"
    return _gather(setting, spec, "optimizer", "params", _dtype(setting, spec), 1, "update", why)


def _to_use(setting: Setting, path: str, spec: ArraySpec) -> list[Collective]:
    dtype, turns, pipeline = _dtype(setting, spec), setting.turns, setting.place.layout.pipeline
    if pipeline is not None and pipeline.gather == "step":
        return _gather(setting, spec, "params", "use", dtype, 1, "forward", f"{path}: gathered once a step")
    layer, why = one_layer(spec), f"{path}: gathered for use"
    if not in_stack(spec):
        forward = turns.embed if path.startswith(("embedding", "positions")) else turns.head
        return _gather(setting, layer, "params", "use", dtype, forward, "forward", why)
    passes = _passes(setting, spec)
    again = passes.backward if is_matrix(path, spec) else passes.again
    return _gather(setting, layer, "params", "use", dtype, passes.forward, "forward", why) + _gather(
        setting, layer, "params", "use", dtype, again, "backward", why
    )


def _gradients(setting: Setting) -> Iterator[tuple[str, ArraySpec, int]]:
    """(path, spec, numbers in all): matrices that are joined while in use count as one, of the first one's form."""
    left = {path: spec for path, spec in weights(setting) if not path.endswith("router/bias")}  # (which has none)
    for stack in STACKS:
        for names in JOINED:
            paths = [f"{stack}/{name}" for name in names if f"{stack}/{name}" in left]
            alike = {setting.weight_axes(one_layer(left[path]), "use") for path in paths}
            if len(paths) > 1 and len(alike) == 1:
                specs = [left.pop(path) for path in paths]
                yield "+".join(paths), specs[0], sum(spec.size for spec in specs)
    for path, spec in left.items():
        yield path, spec, spec.size


def _each_time(setting: Setting, path: str, spec: ArraySpec, size: int) -> list[Collective]:
    """The sum of a gradient over the axes of the tokens that it comes from, where that is done each time."""
    place, turns, layer = setting.place, setting.turns, one_layer(spec)
    matrix = is_matrix(path, spec) or path.endswith("table")
    dtype = setting.config.precision.dtype if matrix else FLOAT32
    scale = size / spec.size
    summed = without(_summed(setting, path, spec), _joined(setting, path, spec))
    if place.layout.pipeline is None:
        count = _passes(setting, spec).backward if in_stack(spec) else _end(setting, path)
        return _reduce(setting, path, layer, scale, dtype, summed, place.gradient_rows, count)
    if not in_stack(spec):  # (what is added up while a flag is set is summed behind, on all stages: Worker.backward)
        return _reduce(setting, path, layer, scale, dtype, summed, "use", turns.ticks)
    # Vectors (and routers) of all layers of a piece are summed together, behind the layers' loop.
    each = setting.config.model.num_layers - setting.config.model.num_stacked
    times = turns.table
    if in_layers(spec):
        ids = place.layer_ids(setting.config.model.num_stacked)
        assert ids is not None
        each, times = ids.shape[2], turns.ticks
    if not matrix:
        scale, each = scale * each, 1
    return _reduce(setting, path, layer, scale, dtype, summed, "use", times * each)


def _once(setting: Setting, path: str, spec: ArraySpec) -> list[Collective]:
    """The sum of a gradient over the axes that are joined once a step, in float32."""
    place = setting.place
    axes = _joined(setting, path, spec)
    if place.layout.pipeline is None:
        return _reduce(setting, path, spec, 1, FLOAT32, axes, "optimizer", 1, start=place.gradient_rows)
    rows, own = setting.weight_axes(spec, "optimizer"), setting.own_axes
    if in_layers(spec):
        whole = len(one_layer(spec).dims) == 1 and any(axis not in rows for axis in axes)  # short vectors
        return _reduce(setting, path, spec, 1, FLOAT32, axes, "use" if whole else "optimizer", 1, steps=(axes,))
    kept = any(axis in rows for axis in own)  # parts that the devices of a stage keep are summed over the stages
    steps = (own, without(axes, own)) if kept else (axes,)
    return _reduce(setting, path, spec, 1, FLOAT32, axes, "optimizer" if kept else "use", 1, steps=steps)


def _summed(setting: Setting, path: str, spec: ArraySpec) -> Axes:
    """All axes over which a gradient has its parts, but those of a pipeline's stages."""
    return without(setting.ordered(_token_axes(setting, path)), setting.weight_axes(one_layer(spec), "use"))


def _joined(setting: Setting, path: str, spec: ArraySpec) -> Axes:
    """Those over which it is joined once a step: in a pipeline also the stages, of what stands outside the layers."""
    if setting.place.layout.pipeline is None:
        summed = _summed(setting, path, spec)
        return tuple(axis for axis in joined_once(setting.place) if axis in summed)
    own = without(setting.own_axes, setting.weight_axes(one_layer(spec), "use"))
    return own + (() if in_layers(spec) else setting.axes["layers"])


def _end(setting: Setting, path: str) -> int:
    return setting.turns.table if path.startswith(("embedding", "positions")) else setting.turns.head


def _token_axes(setting: Setting, path: str) -> Axes:
    """The axes of the activation dims that a gradient is summed over."""
    axes = setting.axes
    if "/experts/" in path:
        return expert_axes(setting).tokens
    if "/router/" in path:
        return axes["batch"] + axes["stream"]
    if setting.config.model.latent is not None and "attention/" in path:
        return axes["batch"] + axes["length"]
    if path.endswith(("query_norm/scale", "key_norm/scale")):
        return axes["batch"] + axes["length"] + axes["heads" if "query" in path else "kv_heads"]
    if "norm/" in path or path.endswith(("output_bias", "down_bias")):
        return axes["batch"] + axes["stream"]
    return axes["batch"] + axes["length"]


def _reduce(
    setting: Setting, path: str, spec: ArraySpec, scale: float, dtype: np.dtype, summed: Axes, rows: str, count: int,
    start: str = "use", steps: tuple[Axes, ...] = (),
) -> list[Collective]:  # fmt: skip
    """From the rows of `start`: a reduce-scatter over the axes that `rows` add, and an all-reduce over those left.

    steps: the axes that are summed over at a time; those of batch and of length if none are given (Placement.at_use).
    """
    added = without(setting.weight_axes(spec, rows), setting.weight_axes(spec, start))
    scattered = tuple(axis for axis in added if axis in summed)
    held = round(scale * setting.weight(spec, start, dtype))
    why, phase = f"{path}: gradient", "backward"
    found: list[Collective] = []
    length = setting.axes["length"]
    for step in steps or (without(scattered, length), length):
        axes = tuple(axis for axis in step if axis in scattered)
        found += setting.make("reduce_scatter", axes, held, count, phase, _dim(setting, spec, rows, axes), why)
        held //= setting.place.size(axes)
    return found + setting.make("all_reduce", without(summed, scattered), held, count, phase, "", why)


def _dim(setting: Setting, spec: ArraySpec, rows: str, axes: Axes) -> str:
    for dim, of_dim in zip(spec.dims, axes_of(setting.place, rows, spec), strict=True):
        if set(axes) & set(of_dim):
            return dim
    return ""
