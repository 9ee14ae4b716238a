"""Random layouts and small models for them, as a hypothesis strategy.

Half of the layouts are put together from what axes usually do (share the batch, store, cut heads, MLP, vocabulary, the
stream or the length), so that many can run; the others have any rows at all. Meshes have any axes, names, order and
sizes.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from meshtrain.layout import DIMS
from meshtrain.layout.layout import REMAT, WEIGHT_KINDS
from tests.run.proofs import MODELS

NAMES = ("data", "tensor", "rows", "columns", "x", "fsdp", "a_b", "_1")
WEIGHT_DIMS = tuple(name for name, dim in DIMS.items() if dim.weight)


@dataclass(frozen=True)
class Drawn:
    """A layout's dict, the number of devices it is for, and the name of a model."""

    layout: dict[str, Any]
    num_devices: int
    model: str


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Anything that a user might write whose rows name known dims and axes."""
    num_devices = draw(st.sampled_from([1, 2, 4, 8, 8]))
    mesh = draw(meshes(num_devices))
    layout: dict[str, Any] = {"mesh": mesh, "rules": {}}
    if draw(st.booleans()):
        for axis in mesh:
            _give_role(draw, layout, axis)
    if draw(st.booleans()):
        layout["rules"].update(draw(rows(tuple(mesh), tuple(DIMS))))
    for section in ("activations", *WEIGHT_KINDS):
        if draw(st.integers(0, 4)) == 0:
            dims = tuple(DIMS) if section == "activations" else WEIGHT_DIMS
            layout[section] = {**layout.get(section, {}), **draw(rows(tuple(mesh), dims))}
    layout["accumulate"] = draw(st.sampled_from([1, 1, 2, 4, 3]))
    layout["remat"] = draw(st.sampled_from(["none", *REMAT]))
    return Drawn(layout, num_devices, draw(st.sampled_from(sorted(MODELS))))


@st.composite
def meshes(draw: st.DrawFn, num_devices: int) -> dict[str, int]:
    """One to three axes whose sizes multiply up to the devices, perhaps one of them -1."""
    sizes, left = [], num_devices
    for _ in range(draw(st.integers(0, 2))):
        size = draw(st.sampled_from([n for n in (1, 2, 4, 8) if left % n == 0]))
        sizes.append(size)
        left //= size
    sizes = draw(st.permutations([*sizes, left]))
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = -1
    return dict(zip(draw(st.permutations(NAMES)), sizes, strict=False))


@st.composite
def rows(draw: st.DrawFn, axes: tuple[str, ...], dims: tuple[str, ...]) -> dict[str, Any]:
    """One to three rows of any dims with no axis, one, or two."""
    choices: list[Any] = [None, *axes, *((a, b) for a in axes for b in axes if a != b)]
    chosen = draw(st.lists(st.sampled_from(dims), min_size=1, max_size=3, unique=True))
    return {dim: draw(st.sampled_from(choices)) for dim in chosen}


def _give_role(draw: st.DrawFn, layout: dict[str, Any], axis: str) -> None:
    """Writes the rows of one of the usual roles of an axis into a layout."""
    role = draw(st.sampled_from(["batch", "zero", "zero", "tensor", "tensor", "sequence", "context", "part"]))
    rules = layout["rules"]
    if role in ("batch", "zero"):
        rules["batch"] = (*rules.get("batch", ()), axis)
    if role == "zero":
        section = layout.setdefault(draw(st.sampled_from(WEIGHT_KINDS)), {})
        dim = draw(st.sampled_from(["embed", "embed", "embed", *WEIGHT_DIMS]))
        section[dim] = (*section.get(dim, rules.get(dim, ())), axis)
    if role in ("tensor", "sequence"):
        for dim in ("heads", "kv_heads", "mlp", "vocab"):
            rules[dim] = (*rules.get(dim, ()), axis)
    if role == "sequence":
        section = layout.setdefault("activations", {})
        section["stream"] = (*section.get("stream", ()), axis)
    if role == "context":
        rules["length"] = (*rules.get("length", ()), axis)
        section = layout.setdefault("activations", {})
        section["stream"] = (*section.get("stream", ()), axis)
        layout["attention"] = draw(st.sampled_from(["ring", "ring", "gather", "ulysses", "usp"]))
        layout["order"] = draw(st.sampled_from(["contiguous", "zigzag"]))
    if role == "part":
        dim = draw(st.sampled_from(["heads", "kv_heads", "mlp", "vocab", "embed", "head_dim"]))
        rules[dim] = (*rules.get(dim, ()), axis)
