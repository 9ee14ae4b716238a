"""`Layout`: the whole declaration of where and when, as one frozen value. It never says what is computed.

Layout.parse({"mesh": {"data": -1, "tensor": 2}, "rules": {"batch": "data", "mlp": "tensor"}, ...}, name="mine")
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshtrain.errors import InputError, nearest
from meshtrain.layout.dims import DIMS
from meshtrain.layout.mesh import MeshShape
from meshtrain.layout.rules import Rules

REMAT = ("none", "full", "dots", "names")
WEIGHT_CLASSES = ("params", "grads", "optimizer")

_NO_RULES = Rules({}, {})


@dataclass(frozen=True)
class Layout:
    """Where arrays live and when work is done.

    mesh: axis sizes, slowest-changing first. rules: rows for every array. activations, params, grads, optimizer: the
    rows of one class, already with all that it inherits. accumulate: microbatches whose gradients are summed before an
    update. remat: what the backward pass recomputes (none: nothing; full: all of a layer from its input; dots: all but
    matrix products; names: all but a few named tensors). attention: how queries reach keys and values on other devices.
    order: how a sharded length is dealt out. pipeline, experts: sections of their own. name, doc: for people.
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
    pipeline: Mapping[str, Any] | None = None
    experts: Mapping[str, Any] | None = None
    name: str = "layout"
    doc: str = field(default="", compare=False)

    @classmethod
    def parse(cls, mapping: Mapping[str, Any], name: str = "layout", doc: str = "") -> "Layout":
        """A layout from the dict of a layout file. InputError for unknown keys, dims or axes and for bad values."""
        valid = [f.name for f in fields(cls) if f.name not in ("name", "doc")]
        for key in mapping:
            if key not in valid:
                raise InputError(
                    f"layout {name}: there is no key {key!r}.{nearest(key, valid)} The keys are: {' '.join(valid)}."
                )
        mesh = MeshShape.parse(_section(mapping, "mesh", name))
        rules = Rules.parse(_section(mapping, "rules", name), "rules")
        layout = cls(
            mesh=mesh,
            rules=rules,
            activations=rules.override(Rules.parse(_section(mapping, "activations", name), "activations")),
            **_weight_rules(mapping, rules, name),
            accumulate=_positive(mapping.get("accumulate", 1), "accumulate"),
            remat=_choice(mapping.get("remat", "none"), "remat", REMAT),
            attention=_word(mapping.get("attention", "local"), "attention"),
            order=_word(mapping.get("order", "contiguous"), "order"),
            pipeline=_optional_section(mapping, "pipeline"),
            experts=_optional_section(mapping, "experts"),
            name=name,
            doc=doc,
        )
        for section in (layout.activations, layout.optimizer, layout.grads, layout.params):
            section.check_axes(mesh.axes)
        return layout


def _weight_rules(mapping: Mapping[str, Any], rules: Rules, name: str) -> dict[str, Rules]:
    """The rows of params, grads and optimizer, each inheriting from the one before it."""
    found: dict[str, Rules] = {}
    for section in WEIGHT_CLASSES:
        own = Rules.parse(_section(mapping, section, name), section)
        for dim in own.rows:
            if not DIMS[dim].weight:
                weights = " ".join(d for d, dim_ in DIMS.items() if dim_.weight)
                raise InputError(
                    f"{section}.{dim}: no weight has the dim {dim!r}; write the row under `activations` or `rules`."
                    f" Dims of weights are: {weights}."
                )
        rules = rules.override(own)
        found[section] = rules
    return found


def _section(mapping: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    value = mapping.get(key)
    if value is None:
        if key == "mesh":
            raise InputError(f"layout {name}: `mesh` is missing; `mesh=dict(data=-1)` is one axis over all devices.")
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"{key}: expected a dict, such as {key}=dict(...), not {value!r}.")
    return value


def _optional_section(mapping: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    return dict(_section(mapping, key, "")) if mapping.get(key) is not None else None


def _positive(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key}: expected a whole number of at least 1, not {value!r}; {key}=1 is the default.")
    return value


def _word(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{key}: expected a word, not {value!r}.")
    return value


def _choice(value: Any, key: str, valid: tuple[str, ...]) -> str:
    if value not in valid:
        raise InputError(f"{key}: {value!r} is not one of {', '.join(valid)}.{nearest(str(value), valid)}")
    return str(value)
