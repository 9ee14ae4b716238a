"""`Choice`: what a search varies, as numbers and words, and the layout that it stands for.

The mesh is data x stage x context x tensor, slowest-changing first: partners of a tensor axis are neighbours, data is
outermost. Experts take their devices from data: that part stands inside of context, cut once more where it leaves a
node, so that a token travels inside its node first. Names of axes are the caller's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from meshtrain.layout import named_specs
from meshtrain.layout.dims import INHERITED
from meshtrain.layout.layout import REMAT
from meshtrain.layout.pipeline import KEEPS, even
from meshtrain.layout.roles import ZERO
from meshtrain.model import ModelConfig, describe

ZERO_CLASS = {stage: kind for kind, stage in ZERO.items()}
ROWS_AT_ONCE = (1, 2, 4, 8)
REPEATS = (2, 4, 8)
SHORTEST = 1024  # tokens of a row's part, where rows are cut
LARGEST_TABLE = 8192  # pieces x microbatches of a schedule that is worth its table


CAPACITIES = (None, 1.25)  # dropless, and a quarter above an even load
MOST_ROWS = 8  # times those that an even load fills, beyond which dropless is not looked at
MOST_NODES = 8  # that experts are dealt out over


class AxisNames(NamedTuple):
    """What the layout's mesh axes are to be called. experts: of experts; nodes: of the same over several nodes."""

    data: str
    stage: str
    context: str
    tensor: str
    experts: str
    nodes: str


class Sizes(NamedTuple):
    """Sizes of the mesh's axes; data with the devices that experts take from it."""

    data: int
    stage: int
    context: int
    tensor: int


@dataclass(frozen=True)
class Experts:
    """How experts are dealt out: over `parts` devices that also cut the batch, in `nodes` nodes; and over the tensor
    axis too, if `tensor`. capacity: factor above an even load; None is dropless."""

    parts: int = 1
    nodes: int = 1
    tensor: bool = False
    capacity: float | None = None


@dataclass(frozen=True)
class Choice:
    """sizes: of the mesh. zero: ZeRO stage over data (and context). microbatches: of a step, one after the other.
    schedule: of a pipeline, with `repeats` pieces a stage; None without one; keep, layers: as in the layout. experts:
    None for a model without, and for a whole copy of them, dropless, wherever the other weights of their layers are."""

    sizes: Sizes
    zero: int = 0
    remat: str = "none"
    microbatches: int = 1
    schedule: str | None = None
    repeats: int = 1
    experts: Experts | None = None
    keep: str = KEEPS[0]
    layers: tuple[int, ...] | None = None

    @property
    def expert_parts(self) -> int:
        """Into how many parts the experts are cut."""
        if self.experts is None:
            return 1
        return self.experts.parts * (self.sizes.tensor if self.experts.tensor else 1)

    def layout(self, names: AxisNames) -> dict[str, Any]:
        """The layout's dict, as a layout file gives it."""
        mesh, batch, of_experts = self._mesh(names)
        _, stage, context, tensor = (
            name if size > 1 else None for name, size in zip(names[:4], self.sizes, strict=True)
        )
        rules: dict[str, Any] = {"batch": _row(batch)}
        if context:
            rules["length"] = context
        if stage:
            rules["layers"] = stage
        if tensor:
            rules |= dict.fromkeys(("heads", "kv_heads", "mlp", "vocab"), tensor)
        if self.experts:
            over = of_experts + ((tensor,) if tensor and self.experts.tensor else ())
            rules |= {"expert": _row(over)} if over else {}
            if tensor and self.experts.tensor:
                rules["expert_mlp"] = None
        found: dict[str, Any] = {"mesh": mesh, "rules": rules}
        stream = tuple(axis for axis in (context, tensor) if axis)
        if stream:
            found["activations"] = {"stream": _row(stream)}
        storage = (*(axis for axis in batch if mesh[axis] > 1), *([context] if context else []))
        if self.zero and storage:
            found[ZERO_CLASS[self.zero]] = {"embed": _row(storage)}
            if of_experts:
                found[ZERO_CLASS[self.zero]]["expert_embed"] = _row([a for a in storage if a not in of_experts])
        if context:
            found |= {"attention": "gather" if stage else "ring", "order": "zigzag"}
        if self.remat != "none":
            found["remat"] = self.remat
        if self.schedule:
            found["pipeline"] = {"schedule": self.schedule, "microbatches": self.microbatches}
            if self.repeats > 1:
                found["pipeline"]["repeats"] = self.repeats
            if self.keep != KEEPS[0]:
                found["pipeline"]["keep"] = self.keep
            if self.layers:
                found["pipeline"]["layers"] = list(self.layers)
        elif self.microbatches > 1:
            found["accumulate"] = self.microbatches
        if self.experts:
            factor = self.experts.capacity
            found["experts"] = {"dispatch": "capacity" if factor else "dropless"}
            found["experts"] |= {"capacity_factor": factor} if factor else {}
        return found

    def _mesh(self, names: AxisNames) -> tuple[dict[str, int], tuple[str, ...], tuple[str, ...]]:
        """(axes with their sizes, those that cut the batch, those of them that cut the experts)."""
        sizes, experts = self.sizes, self.experts or Experts()
        inside = {names.nodes: experts.nodes, names.experts: experts.parts // experts.nodes}
        inside = {name: size for name, size in inside.items() if size > 1}
        of_experts, data = tuple(inside), sizes.data // experts.parts
        if experts.parts == sizes.data and len(inside) == 1:  # folded on data: every part of the batch has its own
            inside, of_experts, data = {}, (names.data,), sizes.data
        middle = {names.stage: sizes.stage, names.context: sizes.context}
        last = {names.tensor: sizes.tensor} if sizes.tensor > 1 else {}
        mesh = {names.data: data, **{name: size for name, size in middle.items() if size > 1}, **inside, **last}
        return mesh, (names.data, *inside), of_experts


def _row(axes: Sequence[str]) -> Any:
    """A row of rules: one name, several, or None."""
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def least_rows(model: ModelConfig) -> float:
    """Without a capacity: rows times experts that devices compute at least, for each pair of a token and an expert.

    As compiled, all rows of a buffer meet all experts of a device; one expert each on as many devices as there are
    experts is the least: a buffer has room for all tokens of all of them, of which top_k of num_experts come."""
    assert model.moe is not None
    return model.moe.num_experts / model.moe.top_k


def expert_choices(sizes: Sizes, model: ModelConfig, fast: int) -> Iterator[Experts]:
    """Ways to deal a model's experts out on a mesh, dropless first, and a whole copy with a capacity; nothing for a
    model without experts.

    Over one part or all that share fast links, or a few whole nodes: what lies between costs as much and spares less.
    """
    if model.moe is None:
        return
    near = max(fast // sizes.tensor, 1)  # parts beside each other in the fast links
    divisors = _divisors(math.gcd(sizes.data, model.moe.num_experts))
    inside = max(n for n in divisors if n <= near)
    across = [n for n in divisors if n > near and n % near == 0 and n // near <= MOST_NODES]
    dropless = least_rows(model) <= MOST_ROWS
    for parts in sorted({1, inside, *across}):
        for tensor in (False, True) if sizes.tensor > 1 else (False,):
            whole = parts * (sizes.tensor if tensor else 1)
            narrow = not tensor and model.moe.mlp % sizes.tensor
            if model.moe.num_experts % whole or narrow:
                continue
            for capacity in CAPACITIES if whole > 1 and dropless else CAPACITIES[1:]:
                yield Experts(parts, max(parts // near, 1), tensor, capacity)


def meshes(model: ModelConfig, num_devices: int, global_batch: int, length: int, fast: int) -> Iterator[Sizes]:
    """Every mesh that divides devices, batch, heads, widths and length; tensor stays inside the `fast` links."""
    for tensor in _divisors(num_devices):
        if tensor > fast or not _divides_model(model, tensor):
            continue
        for context in (1, 2, 4, 8, 16, 32):
            short = context > 1 and length // context < SHORTEST
            if num_devices % (tensor * context) or length % (2 * context * tensor) or short:
                continue
            for stage in _divisors(num_devices // (tensor * context)):
                data = num_devices // (tensor * context * stage)
                if stage <= min(model.num_layers, 64) and global_batch % data == 0:
                    yield Sizes(data, stage, context, tensor)


def choices(sizes: Sizes, model: ModelConfig, global_batch: int, fast: int) -> Iterator[Choice]:
    """Every choice on a mesh. In a pipeline masters and moments are always stored in parts: that costs no traffic."""
    whole = model.moe is None or model.moe.mlp % sizes.tensor == 0  # else experts cannot be cut as dense MLPs are
    plain = whole and (model.moe is None or least_rows(model) <= MOST_ROWS)
    experts = [*([None] if plain else []), *expert_choices(sizes, model, fast)]
    for choice in _dense_choices(sizes, model, global_batch):
        for one in experts:
            yield replace(choice, experts=one) if one else choice


def _dense_choices(sizes: Sizes, model: ModelConfig, global_batch: int) -> Iterator[Choice]:
    rows = global_batch // sizes.data
    parts = sizes.data * sizes.context
    stored = parts > 1 and all(size % parts == 0 for size in _stored_widths(model))
    for at_once in (n for n in ROWS_AT_ONCE if rows % n == 0 and (sizes.stage == 1 or n <= 2)):
        num = rows // at_once
        for remat in REMAT:
            if sizes.stage == 1:
                for zero in range(4 if stored else 1):
                    yield Choice(sizes, zero, remat, num)
                continue
            for keep in KEEPS:
                one = Choice(sizes, int(stored), remat, num, "1f1b", keep=keep)
                yield replace(one, layers=dealt(model, sizes.stage))
                for repeats in REPEATS:
                    pieces = repeats * sizes.stage
                    if pieces <= model.num_layers + 2 and sizes.stage <= num and pieces * num <= LARGEST_TABLE:
                        layers = dealt(model, pieces)
                        yield replace(one, schedule="interleaved", repeats=repeats, layers=layers)


@lru_cache(maxsize=256)
def dealt(model: ModelConfig, number: int) -> tuple[int, ...] | None:
    """How many layers of the stack each of so many pieces gets where the first dense layers run in the first of them,
    so that all have as much to do; None where there are none, and the layout itself deals evenly."""
    if model.moe is None or not model.moe.first_dense or number == 1:
        return None
    dense = -(-model.moe.first_dense // model.moe.every)
    first = max(-(-(model.num_stacked + dense) // number) - dense, 0)
    return (first, *even(model.num_stacked - first, number - 1))


@lru_cache(maxsize=64)
def _stored_widths(model: ModelConfig) -> frozenset[int]:
    """Sizes of the dims of weights that the row `embed` cuts, those of experts left out."""
    widths = {dim for dim, of in INHERITED.items() if of == "embed"} - {"expert_embed"} | {"embed"}
    specs = [spec for _, spec in named_specs(dict(describe(model)))]
    return frozenset(size for spec in specs for dim, size in zip(spec.dims, spec.shape, strict=True) if dim in widths)


def _divides_model(model: ModelConfig, tensor: int) -> bool:
    """Whether heads and widths divide; key heads may also be fewer, if they divide the axis. (Experts that are narrower
    than that may still be dealt out whole.)"""
    few = model.num_kv_heads % tensor and tensor % model.num_kv_heads
    return not (model.num_heads % tensor or model.mlp % tensor or few)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
