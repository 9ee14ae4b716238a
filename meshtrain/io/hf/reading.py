"""From the files of a Hugging Face folder into weights on devices, each device's own slices and no others.

The files are maps: a slice that no device of this process needs is never read. On the host there is at any time one
tensor's slice of one weight besides what the devices hold (on CPUs the buffer that is filled is the device's array).
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from meshtrain.io.bar import byte_bar
from meshtrain.io.hf.folder import Folder
from meshtrain.io.hf.safetensors import Tensor
from meshtrain.io.hf.table import Piece, copy, view
from meshtrain.layout import ArraySpec, Tree, named_specs

_ALIGNED = 64  # bytes; JAX takes such a buffer as a CPU device's array without a copy


def read_params(folder: Folder, specs: Tree, targets: Tree, progress: bool = True) -> Tree:
    """The folder's weights as the tree of arrays `targets` (ShapeDtypeStruct with shardings, in physical shapes).

    specs: the same tree of ArraySpec, in logical shapes. What lies beyond them is zeros. The layers come in the model's
    order. InputError, before any weight is read, where the folder is not whole.
    """
    weights = folder.weights
    total = sum(tensor.num_bytes for parts in weights.values() for _, tensor in parts)
    leaves, structure = jax.tree.flatten(targets)
    with byte_bar(f"reading {folder.path.name}", total, progress) as advance:
        arrays = [
            _array(weights[path], spec, target, advance)
            for (path, spec), target in zip(named_specs(specs), leaves, strict=True)
        ]
    return jax.tree.unflatten(structure, arrays)


def _array(
    parts: list[tuple[Piece, Tensor]],
    spec: ArraySpec,
    target: jax.ShapeDtypeStruct,
    advance: Callable[[int], object],
) -> jax.Array:
    made: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        whole = (slice(None),) * len(target.shape)
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or whole, target.shape, strict=True))
        if bounds not in made:
            made.clear()  # replicas of a shard are asked for one after the other
            made[bounds] = read_slice(parts, spec, bounds, target.dtype)
        return made[bounds]

    assert target.sharding is not None
    array = jax.make_array_from_callback(target.shape, target.sharding, shard)
    array.block_until_ready()  # or the buffers of the next weight pile up behind its transfer
    advance(sum(tensor.num_bytes for _, tensor in parts))
    return array


def read_slice(
    parts: list[tuple[Piece, Tensor]], spec: ArraySpec, bounds: tuple[tuple[int, int], ...], dtype: Any
) -> np.ndarray:
    """The numbers of one weight within `bounds` (start and stop by dim), zeros beyond its logical shape."""
    out = _aligned(tuple(stop - start for start, stop in bounds), np.dtype(dtype))
    if any(stop > size for (_, stop), size in zip(bounds, spec.shape, strict=True)):
        out[...] = 0
    for piece, tensor in parts:
        place, wanted = [], []
        for dim, size, (start, stop) in zip(spec.dims, spec.shape, bounds, strict=True):
            if dim in piece.index:
                place.append(slice(piece.index[dim] - start, piece.index[dim] - start + 1))
                inside = start <= piece.index[dim] < stop
            else:
                last = min(stop, size)
                place.append(slice(0, max(0, last - start)))
                wanted.append(slice(start, last))
                inside = last > start
            if not inside:
                break
        else:
            inside_out = out[tuple(place)].squeeze(_indexed(piece, spec))
            copy(inside_out, view(tensor.open(), piece, spec)[tuple(wanted)])
    return out


def _indexed(piece: Piece, spec: ArraySpec) -> tuple[int, ...]:
    return tuple(number for number, dim in enumerate(spec.dims) if dim in piece.index)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose first byte lies where a CPU device can take it over."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)
