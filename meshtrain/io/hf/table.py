"""Name tables: which tensor of a Hugging Face file is which weight here, line by line, for both directions.

A line says how the dims of a weight lie in the tensor: "(heads head_dim) embed" is a matrix whose rows run over heads
and, within each, over head_dim. From it `view` makes a numpy view of the tensor in the weight's own dims: what is read
from the view is imported, what is written into it is exported, so the two directions cannot disagree.

    model.layers.{layers}.self_attn.q_proj.weight    layers/attention/query    (heads head_dim) embed

A dim in braces is an index in the name: the weight has all of them stacked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshtrain.layout import ArraySpec
from meshtrain.model import ModelConfig

_INDEX = re.compile(r"\{(\w+)\}")
PART = "part"  # the dim of a tensor that holds several weights one after the other


@dataclass(frozen=True)
class Line:
    """One line of a table. `part`: (number, of how many) this weight is among those that the dim `part` runs over."""

    name: str
    path: str
    dims: str
    part: tuple[int, int] | None = None

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
    """One tensor's share in a weight: `name` is its name, `index` where it lies among the stacked ones, by dim."""

    name: str
    line: Line
    index: Mapping[str, int]
    shape: tuple[int, ...]


def pieces(line: Line, spec: ArraySpec, numbers: Mapping[str, Sequence[int]]) -> Iterator[Piece]:
    """The tensors that a weight is made of by this line. `numbers`: as `layer_numbers` gives them."""
    sizes = _sizes(line, spec)
    shape = tuple(int(np.prod([sizes[dim] for dim in group])) for group in line.groups)
    for places in product(*(range(sizes[dim]) for dim in line.indexed)):
        index = dict(zip(line.indexed, places, strict=True))
        called = {dim: numbers[dim][place] if dim in numbers else place for dim, place in index.items()}
        yield Piece(line.name.format(**called), line, index, shape)


def layer_numbers(model: ModelConfig) -> dict[str, Sequence[int]]:
    """Which layers of the model are stacked along each dim of layers: names count layers through the whole model."""
    dense = [layer for layer in range(model.num_layers) if model.moe is not None and not model.is_moe(layer)]
    return {"layers": [layer for layer in range(model.num_layers) if layer not in dense], "dense_layers": dense}


def view(tensor: np.ndarray, piece: Piece, spec: ArraySpec) -> np.ndarray:
    """A view of the tensor in the dims of the weight, in its order, without those in the name."""
    line, sizes = piece.line, _sizes(piece.line, spec)
    dims = [dim for group in line.groups for dim in group]
    values = tensor.reshape([sizes[dim] for dim in dims])
    if line.part is not None:
        values = values[(slice(None),) * dims.index(PART) + (line.part[0],)]
        dims.remove(PART)
    wanted = [dim for dim in spec.dims if dim not in line.indexed]
    return values.transpose([dims.index(dim) for dim in wanted])


def _sizes(line: Line, spec: ArraySpec) -> dict[str, int]:
    sizes: dict[str, int] = dict(zip(spec.dims, spec.shape, strict=True))
    return sizes | ({} if line.part is None else {PART: line.part[1]})
