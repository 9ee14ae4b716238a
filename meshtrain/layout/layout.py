"""`Layout`: the whole declaration of where and when, as one frozen value. It never says what is computed.

Layout.parse({"mesh": {"data": -1, "tensor": 2}, "rules": {"batch": "data", "mlp": "tensor"}, ...}, name="mine")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshtrain.errors import InputError, nearest, one_of
from meshtrain.layout.dims import DIMS
from meshtrain.layout.experts import Experts
from meshtrain.layout.finding import ERROR, Finding, attempt, raise_errors
from meshtrain.layout.mesh import MeshShape
from meshtrain.layout.pipeline import Pipeline
from meshtrain.layout.rules import Rules

REMAT = ("none", "dots", "names", "full")
ATTENTION = ("local", "gather", "ring", "ulysses", "usp")
ORDER = ("contiguous", "zigzag")
WEIGHT_KINDS = ("params", "grads", "optimizer")

_NO_RULES = Rules({}, {})


@dataclass(frozen=True)
class Layout:
    """Where arrays live and when work is done.

    mesh: axis sizes, slowest-changing first. rules: rows for every array. activations, params, grads, optimizer: the
    rows of one class, already with all that it inherits. accumulate: microbatches whose gradients are summed before an
    update. remat: what the backward pass recomputes (none: nothing; full: all of a layer from its input; dots: all but
    matrix products; names: all but a few named tensors). attention: how queries reach keys and values on other devices
    (exchange.py). order: how a cut length is dealt out (order.py). pipeline, experts: sections of their own (their
    modules say what). name, doc: for people.
    """

    mesh: MeshShape
    rules: Rules = _NO_RULES
    activations: Rules = _NO_RULES
    params: Rules = _NO_RULES
    grads: Rules = _NO_RULES
    optimizer: Rules = _NO_RULES
    accumulate: int = 1
    remat: str = "none"
    attention: str = "local"
    order: str = "contiguous"
    pipeline: Pipeline | None = None
    experts: Experts = field(default_factory=Experts)
    name: str = "layout"
    doc: str = field(default="", compare=False)

    @classmethod
    def parse(
        cls, mapping: Mapping[str, Any], name: str = "layout", doc: str = "", findings: list[Finding] | None = None
    ) -> "Layout":
        """A layout from the dict of a layout file. InputError with all that is wrong: keys, dims, axes, values.

        With `findings` it raises only where there is no mesh or there are no stages to speak of: what is wrong is added
        to the list and left out of the layout, so that a check of the rest can go on.
        """
        found: list[Finding] = []
        valid = [f.name for f in fields(cls) if f.name not in ("name", "doc")]
        for key in mapping:
            if key not in valid:
                keys = f"The keys are: {' '.join(valid)}."
                problem = f"there is no key {key!r}.{nearest(key, valid)}"
                found.append(Finding(ERROR, "unknown-key", f"layout {name}", problem, keys))
        mesh = MeshShape.parse(_mesh_section(mapping, name), found)
        values: dict[str, Any] = dict(_rules(mapping, mesh.axes, found))
        for key, (parse, default) in _VALUES.items():
            value = attempt(found, "bad-value", parse, mapping.get(key, default), key)
            values[key] = default if value is None else value
        layout = cls(mesh=mesh, **values, name=name, doc=doc)
        if layout.pipeline and len(axes := layout.rules.axes("layers")) != 1:
            found.append(_no_stage_axis(axes))
        if layout.attention == "usp" and len(axes := layout.activations.axes("length")) < 2:
            found.append(_no_two_axes(axes))
        no_place = any(one.where.startswith(("mesh", "pipeline")) or one.code == "stage-axis" for one in found)
        if findings is None or no_place:
            raise_errors(found)
        else:
            findings += found
        return layout


def _rules(mapping: Mapping[str, Any], mesh_axes: tuple[str, ...], findings: list[Finding]) -> dict[str, Rules]:
    """The rows of every class: activations on top of `rules`; params, grads, optimizer on top of the one before."""
    own: dict[str, Rules] = {}
    for key in ("rules", "activations", *WEIGHT_KINDS):
        section = attempt(findings, "bad-value", _section, mapping.get(key), key) or {}
        own[key] = Rules.parse(section, key, mesh_axes, findings)
    found = {"rules": own["rules"], "activations": own["rules"].override(own["activations"])}
    rules = own["rules"]
    for key in WEIGHT_KINDS:
        findings += [_no_weight(key, dim) for dim in own[key].rows if not DIMS[dim].weight]
        rules = rules.override(own[key].of([dim for dim in own[key].rows if DIMS[dim].weight]))
        found[key] = rules
    return {key: rules.inherit() for key, rules in found.items()}


def _no_weight(key: str, dim: str) -> Finding:
    weights = " ".join(name for name, dim in DIMS.items() if dim.weight)
    return Finding(
        ERROR,
        "no-weight-dim",
        f"{key}.{dim}",
        f"no weight has the dim {dim!r}.",
        f"Write the row under `activations` or `rules`. Dims of weights are: {weights}.",
    )


def _no_stage_axis(axes: tuple[str, ...]) -> Finding:
    return Finding(
        ERROR,
        "stage-axis",
        "rules.layers",
        f"a pipeline's stages are one mesh axis, but the row names {' and '.join(axes) or 'none'}.",
        "Write rules.layers=AXIS with the axis of the stages, or pipeline=None.",
    )


def _no_two_axes(axes: tuple[str, ...]) -> Finding:
    return Finding(
        ERROR,
        "two-axes",
        "attention",
        "'usp' swaps heads over the last axis of rules.length and has its ring over the axes before it, but the row"
        f" names {' and '.join(axes) or 'none'}.",
        "Write rules.length=(RING, SWAP) with two axes, or attention='ring' or 'ulysses' with one.",
    )


def _mesh_section(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if mapping.get("mesh") is None:
        raise InputError(f"layout {name}: `mesh` is missing; `mesh=dict(data=-1)` is one axis over all devices.")
    return _section(mapping["mesh"], "mesh") or {}


def _section(value: Any, key: str) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise InputError(f"{key}: expected a dict, such as {key}=dict(...), not {value!r}.")
    return value


def _positive(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key}: expected a whole number of at least 1, not {value!r}; {key}=1 is the default.")
    return value


def _one_of(*words: str) -> Callable[[Any, str], str]:
    return lambda value, key: one_of(key, value, words)


# How each key that is no section of rules is read, and its value where it is not given.
_VALUES: dict[str, tuple[Callable[[Any, str], Any], Any]] = {
    "accumulate": (_positive, 1),
    "remat": (_one_of(*REMAT), "none"),
    "attention": (_one_of(*ATTENTION), "local"),
    "order": (_one_of(*ORDER), "contiguous"),
    "pipeline": (Pipeline.parse, None),
    "experts": (Experts.parse, Experts()),
}
