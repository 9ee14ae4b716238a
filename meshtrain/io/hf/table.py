"""Name tables: which tensor of a Hugging Face file is which weight here, line by line, for both directions.

A line says how the dims of a weight lie in the tensor: "(heads head_dim) embed" is a matrix whose rows run over heads
and, within each, over head_dim. From it `view` makes a numpy view of the tensor in the weight's own dims: what is read
from the view is imported, what is written into it is exported, so the two directions cannot disagree.

    model.layers.{layers}.self_attn.q_proj.weight    layers/attention/query    (heads head_dim) embed

A dim in braces is an index in the name: the weight has all of them stacked.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from meshtrain.layout import ArraySpec
from meshtrain.model import ModelConfig

_TILE = 360_000  # numbers of a turned matrix cast at a time: fewer are written in short pieces, more leave the caches
_ROWS = 16  # at least, however long: each writes a whole line of the cache
_PAD = 16  # numbers between them: rows a power of two apart would fall into the same places of the cache
_INDEX = re.compile(r"\{(\w+)\}")


def _nothing(model: ModelConfig) -> int:
    return 0


@dataclass(frozen=True)
class Share:
    """A weight that has a part of a tensor's dim: how much of the dim lies before it, and how much after it.

    A dim that the weight itself does not have has the size 1 in it.
    """

    dim: str
    before: Callable[[ModelConfig], int] = _nothing
    after: Callable[[ModelConfig], int] = _nothing


@dataclass(frozen=True)
class Line:
    """One line of a table."""

    name: str
    path: str
    dims: str
    share: Share | None = None

    @property
    def indexed(self) -> tuple[str, ...]:
        """The dims whose index stands in the name, in the order of the name."""
        return tuple(_INDEX.findall(self.name))

    @property
    def groups(self) -> list[list[str]]:
        """For each dim of the tensor the dims that it runs over, slowest first."""
        words = re.findall(r"\([^)]*\)|\w+", self.dims)
        return [word.strip("()").split() for word in words]


@dataclass(frozen=True)
class Piece:
    """One tensor's part of a weight: `name` is its name, `index` where it lies among the stacked ones, by dim.

    sizes: those of the dims in the tensor; start: where along its shared dim the weight begins.
    """

    name: str
    line: Line
    index: Mapping[str, int]
    sizes: Mapping[str, int]
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(math.prod(self.sizes[dim] for dim in group) for group in self.line.groups)


def pieces(line: Line, spec: ArraySpec, model: ModelConfig) -> Iterator[Piece]:
    """The tensors that a weight is made of by this line."""
    sizes, numbers, start = dict(zip(spec.dims, spec.shape, strict=True)), layer_numbers(model), 0
    if line.share is not None:
        start = line.share.before(model)
        sizes[line.share.dim] = start + sizes.get(line.share.dim, 1) + line.share.after(model)
    for places in product(*(range(sizes[dim]) for dim in line.indexed)):
        index = dict(zip(line.indexed, places, strict=True))
        called = {dim: numbers[dim][place] if dim in numbers else place for dim, place in index.items()}
        yield Piece(line.name.format(**called), line, index, sizes, start)


def copy(out: np.ndarray, values: np.ndarray) -> None:
    """out = values, cast to out's dtype, in the order in which memory likes it.

    Where the two lie in another order (a matrix that is turned) it goes by some rows of what is read at a time, which
    are cast first: ten times as fast as numpy's own way, which reads one number from each row after the other.
    """
    out, values = _merged(out, values)
    if list(values.strides) == sorted(values.strides, reverse=True):
        out[...] = values
    elif values.ndim > 2:
        slowest = int(np.argmax(values.strides))
        for turned, part in zip(np.moveaxis(out, slowest, 0), np.moveaxis(values, slowest, 0), strict=True):
            copy(turned, part)
    else:
        width, num_rows = values.shape
        height = min(num_rows, max(_ROWS, _TILE // width))
        cast = np.empty((height, width + _PAD), out.dtype)
        for start in range(0, num_rows, height):
            stop = min(start + height, num_rows)
            rows = cast[: stop - start, :width]
            rows[...] = values[:, start:stop].T
            out[:, start:stop] = rows.T


def _merged(out: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Views of both with as few dims as can be, out's slowest first: dims that follow each other in both become one."""
    out, values = out.squeeze(), values.squeeze()
    order = sorted(range(out.ndim), key=lambda dim: -out.strides[dim])
    out, values = out.transpose(order), values.transpose(order)
    shape: list[int] = []
    for dim, size in enumerate(out.shape):
        if dim and all(array.strides[dim - 1] == array.strides[dim] * size for array in (out, values)):
            shape[-1] *= size
        else:
            shape.append(size)
    return out.reshape(shape), values.reshape(shape)


def layer_numbers(model: ModelConfig) -> dict[str, Sequence[int]]:
    """Which layers of the model are stacked along each dim of layers: names count layers through the whole model."""
    dense = [layer for layer in range(model.num_layers) if model.moe is not None and not model.is_moe(layer)]
    return {"layers": [layer for layer in range(model.num_layers) if layer not in dense], "dense_layers": dense}


def view(tensor: np.ndarray, piece: Piece, spec: ArraySpec) -> np.ndarray:
    """A view of the tensor in the dims of the weight, in its order, without those in the name."""
    line = piece.line
    dims = [dim for group in line.groups for dim in group]
    values = tensor.reshape([piece.sizes[dim] for dim in dims])
    if line.share is not None:
        shared, own = line.share.dim, dict(zip(spec.dims, spec.shape, strict=True))
        before: tuple[Any, ...] = (slice(None),) * dims.index(shared)
        if shared in own:
            values = values[(*before, slice(piece.start, piece.start + own[shared]))]
        else:
            values = values[(*before, piece.start)]
            dims.remove(shared)
    wanted = [dim for dim in spec.dims if dim not in line.indexed]
    return values.transpose([dims.index(dim) for dim in wanted])
