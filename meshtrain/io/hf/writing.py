"""From weights to a Hugging Face folder: sharded safetensors with an index, config, tokenizer; whole or not at all.

The files are made at their full size first; then each weight, one at a time, is written into the tensors that hold it,
through the same views that reading uses. What is written has logical shapes: no padding of any layout.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.errors import InputError, nearest
from meshtrain.io.bar import byte_bar
from meshtrain.io.hf import safetensors
from meshtrain.io.hf.family import Family
from meshtrain.io.hf.fields import Values
from meshtrain.io.hf.folder import CARRIED, CONFIG, INDEX, SINGLE, bare
from meshtrain.io.hf.safetensors import DTYPES, Tensor
from meshtrain.io.hf.table import Piece, copy, pieces, view
from meshtrain.io.home import expanded
from meshtrain.io.staging import errors_named, staged
from meshtrain.io.writer import write_json
from meshtrain.layout import ArraySpec
from meshtrain.model import ModelConfig

# The dtypes of an export: as asked for, in safetensors' headers, in config.json.
NAMES = {"f32": "F32", "bf16": "BF16", "f16": "F16"}
_LONG = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
IN_CONFIG = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_TOO_LARGE = 65520.0  # from here on float16 rounds to infinity


@dataclass(frozen=True)
class Target:
    """How an export is to be. start: the config.json that the run began with; carried: the folder of its other files.

    bare: names without the prefix of the model's inner part. other_dtypes: tensor -> dtype, where not `dtype`.
    made: JSON files of the export that no folder had, by name; what config.json of them says is added to it.
    """

    family: Family
    dtype: str
    shard_bytes: int
    start: Mapping[str, Any] | None = None
    carried: Path | None = None
    bare: bool = False
    other_dtypes: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, Values] = field(default_factory=dict)


@dataclass(frozen=True)
class Exported:
    """What an export wrote. overflows: numbers that were finite and are infinite in the asked dtype."""

    files: int
    tensors: int
    num_bytes: int
    overflows: int


def parse_dtype(text: str) -> str:
    """The dtype of an export as in safetensors' headers; InputError where it is none of the three."""
    name = _LONG.get(text, text)
    if name not in NAMES:
        raise InputError(f"--dtype {text}: expected one of {', '.join(NAMES)}.{nearest(text, [*NAMES, *_LONG])}")
    return NAMES[name]


def write_folder(
    output: Path,
    model: ModelConfig,
    target: Target,
    weight: Callable[[str], np.ndarray],
    progress: bool = True,
) -> Exported:
    """Makes the folder `output`. `weight` gives a weight by its path, in logical shape; each is asked for once.

    InputError where the family cannot say what the model computes, where `output` exists or does not fit on the disk.
    """
    values = target.family.config(model, target.start, "the exported config.json")
    values = {key: value for key, value in values.items() if key not in ("dtype", "torch_dtype")}
    values |= target.made.get(CONFIG, {})
    values["dtype" if "dtype" in (target.start or {}) else "torch_dtype"] = IN_CONFIG[target.dtype]
    parts = {line.path: (spec, list(pieces(line, spec, model))) for line, spec in target.family.weights(model)}
    output = expanded(output).absolute()
    with staged(output) as folder, errors_named(output):
        tensors = _create(folder, parts, target)
        total = sum(tensor.num_bytes for tensor in tensors.values())
        overflows = 0
        with byte_bar(f"writing {output.name}", total, progress) as advance:
            for path, (spec, found) in parts.items():
                overflows += _write(weight(path), spec, found, tensors, advance)
        for name, made in ({**target.made, CONFIG: values}).items():
            write_json(folder / name, made)
        for name in CARRIED:
            if target.carried is not None and (target.carried / name).exists():
                shutil.copyfile(target.carried / name, folder / name)
    return Exported(len({tensor.file for tensor in tensors.values()}), len(tensors), total, overflows)


def _create(folder: Path, parts: Mapping[str, tuple[ArraySpec, Sequence[Piece]]], target: Target) -> dict[str, Tensor]:
    """Every tensor of the export by the name in its table, in files of the right size that hold nothing yet."""
    shapes = {piece.name: piece.shape for _, found in parts.values() for piece in found}
    named = {name: bare(name, target.family) if target.bare else name for name in shapes}
    dtypes = {name: target.other_dtypes.get(named[name], target.dtype) for name in shapes}
    sizes = {name: math.prod(shape) * DTYPES[dtypes[name]].itemsize for name, shape in shapes.items()}
    shards: list[list[str]] = [[]]
    room = target.shard_bytes
    for name in sorted(shapes, key=_natural):
        if shards[-1] and sizes[name] > room:
            shards.append([])
            room = target.shard_bytes
        shards[-1].append(name)
        room -= sizes[name]
    tensors: dict[str, Tensor] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        made = safetensors.create(folder / file, [(named[name], dtypes[name], shapes[name]) for name in names])
        tensors |= {name: made[named[name]] for name in names}
    if len(shards) > 1:
        where = {tensor.name: tensor.file.name for tensor in tensors.values()}
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where})
    return tensors


def _write(
    values: np.ndarray,
    spec: ArraySpec,
    found: Sequence[Piece],
    tensors: Mapping[str, Tensor],
    advance: Callable[[int], object],
) -> int:
    """Writes a weight into its tensors; how many of its numbers overflowed."""
    if values.shape != spec.shape:
        raise ValueError(f"a weight of shape {values.shape} where {spec.shape} is expected")
    overflows = 0
    for piece in found:
        index = tuple(piece.index.get(dim, slice(None)) for dim in spec.dims)
        tensor = tensors[piece.name]
        numbers = values[index]
        if tensor.dtype == "F16":
            overflows += int(np.count_nonzero(np.isfinite(numbers) & (np.abs(numbers) >= _TOO_LARGE)))
        with np.errstate(over="ignore"):
            copy(view(tensor.open(writable=True), piece, spec), numbers)  # rounds to nearest, ties to even
        advance(numbers.size * DTYPES[tensor.dtype].itemsize)
    return overflows


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts layer 10 after layer 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]
