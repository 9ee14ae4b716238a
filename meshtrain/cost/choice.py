"""`Choice`: what a search varies, as numbers and words, and the layout that it stands for.

The mesh is data x stage x context x tensor, slowest-changing first: partners of a tensor axis are neighbours, data is
outermost. Names of axes are the caller's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshtrain.model import ModelConfig

ZERO_CLASS = {1: "optimizer", 2: "grads", 3: "params"}
REMATS = ("none", "dots", "names", "full")
ROWS_AT_ONCE = (1, 2, 4, 8)
REPEATS = (2, 4, 8)
LARGEST_TABLE = 8192  # pieces x microbatches of a schedule that is worth its table


class AxisNames(NamedTuple):
    """What the layout's mesh axes are to be called."""

    data: str
    stage: str
    context: str
    tensor: str


class Sizes(NamedTuple):
    """Sizes of the mesh's axes."""

    data: int
    stage: int
    context: int
    tensor: int


@dataclass(frozen=True)
class Choice:
    """sizes: of the mesh. zero: ZeRO stage over data (and context). microbatches: of a step, one after the other.
    schedule: of a pipeline, with `repeats` pieces a stage; None without one."""

    sizes: Sizes
    zero: int = 0
    remat: str = "none"
    microbatches: int = 1
    schedule: str | None = None
    repeats: int = 1

    def layout(self, names: AxisNames) -> dict[str, Any]:
        """The layout's dict, as a layout file gives it."""
        data, stage, context, tensor = (
            name if size > 1 else None for name, size in zip(names, self.sizes, strict=True)
        )
        mesh = {names.data: self.sizes.data}
        mesh |= {name: size for name, size in zip(names[1:], self.sizes[1:], strict=True) if size > 1}
        rules: dict[str, Any] = {"batch": names.data}
        if context:
            rules["length"] = context
        if stage:
            rules["layers"] = stage
        if tensor:
            rules |= dict.fromkeys(("heads", "kv_heads", "mlp", "vocab"), tensor)
        found: dict[str, Any] = {"mesh": mesh, "rules": rules}
        stream = tuple(axis for axis in (context, tensor) if axis)
        if stream:
            found["activations"] = {"stream": stream if len(stream) > 1 else stream[0]}
        storage = tuple(axis for axis in (data, context) if axis)
        if self.zero and storage:
            found[ZERO_CLASS[self.zero]] = {"embed": storage if len(storage) > 1 else storage[0]}
        if context:
            found |= {"attention": "gather" if stage else "ring", "order": "zigzag"}
        if self.remat != "none":
            found["remat"] = self.remat
        if self.schedule:
            found["pipeline"] = {"schedule": self.schedule, "microbatches": self.microbatches}
            if self.repeats > 1:
                found["pipeline"]["repeats"] = self.repeats
        elif self.microbatches > 1:
            found["accumulate"] = self.microbatches
        return found


def meshes(model: ModelConfig, num_devices: int, global_batch: int, length: int, fast: int) -> Iterator[Sizes]:
    """Every mesh that divides devices, batch, heads, widths and length; tensor stays inside the `fast` links."""
    for tensor in _divisors(num_devices):
        if tensor > fast or not _divides_model(model, tensor):
            continue
        for context in (1, 2, 4, 8, 16, 32):
            if num_devices % (tensor * context) or length % (2 * context * tensor) or length // context < 1024:
                continue
            for stage in _divisors(num_devices // (tensor * context)):
                data = num_devices // (tensor * context * stage)
                if stage <= min(model.num_layers, 64) and global_batch % data == 0:
                    yield Sizes(data, stage, context, tensor)


def choices(sizes: Sizes, model: ModelConfig, global_batch: int) -> Iterator[Choice]:
    """Every choice on a mesh. In a pipeline masters and moments are always stored in parts: that costs no traffic."""
    rows = global_batch // sizes.data
    parts = sizes.data * sizes.context
    stored = parts > 1 and model.embed % parts == 0
    for at_once in (n for n in ROWS_AT_ONCE if rows % n == 0 and (sizes.stage == 1 or n <= 2)):
        num = rows // at_once
        for remat in REMATS:
            if sizes.stage == 1:
                for zero in range(4 if stored else 1):
                    yield Choice(sizes, zero, remat, num)
                continue
            yield Choice(sizes, int(stored), remat, num, "1f1b")
            for repeats in REPEATS:
                pieces = repeats * sizes.stage
                if pieces <= model.num_layers + 2 and sizes.stage <= num and pieces * num <= LARGEST_TABLE:
                    yield Choice(sizes, int(stored), remat, num, "interleaved", repeats)


def _divides_model(model: ModelConfig, tensor: int) -> bool:
    """Whether heads and widths divide; key heads may also be fewer, if they divide the axis."""
    few = model.num_kv_heads % tensor and tensor % model.num_kv_heads
    return not (model.num_heads % tensor or model.mlp % tensor or few)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
