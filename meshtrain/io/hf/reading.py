"""From the files of a Hugging Face folder into weights on devices, each device's own slices and no others.

What lies in one piece is read, other slices come from maps: what no device of this process needs is never read. Threads
share the tensors of a weight, a few megabytes each at a time, so that casting and turning keep up with the disk. On the
host there are at any time these megabytes and one weight besides what the devices hold (on CPUs the buffer that is
filled is the device's array).
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from meshtrain.io.bar import byte_bar
from meshtrain.io.hf.folder import Folder
from meshtrain.io.hf.safetensors import Tensor
from meshtrain.io.hf.table import Piece, copy, view
from meshtrain.layout import ArraySpec, Tree, named_specs

_ALIGNED = 64  # bytes; JAX takes such a buffer as a CPU device's array without a copy
_THREADS = min(16, 2 * (os.cpu_count() or 1))  # more than cores: some of them wait for the disk
_CHUNK = 1 << 21  # bytes of a tensor that a thread takes at a time
_OF_THREAD = threading.local()
Wanted = dict[str, slice]  # by dim of the weight, in its order, without those in the name


def read_params(folder: Folder, specs: Tree, targets: Tree, progress: bool = True) -> Tree:
    """The folder's weights as the tree of arrays `targets` (ShapeDtypeStruct with shardings, in physical shapes).

    specs: the same tree of ArraySpec, in logical shapes. What lies beyond them is zeros. The layers come in the model's
    order. InputError, before any weight is read, where the folder is not whole.
    """
    weights = folder.weights
    total = sum(tensor.num_bytes for parts in weights.values() for _, tensor in parts)
    leaves, structure = jax.tree.flatten(targets)
    with byte_bar(f"reading {folder.path.name}", total, progress) as advance, ThreadPoolExecutor(_THREADS) as pool:
        arrays = [
            _array(weights[path], spec, target, pool, advance)
            for (path, spec), target in zip(named_specs(specs), leaves, strict=True)
        ]
    return jax.tree.unflatten(structure, arrays)


def _array(
    parts: list[tuple[Piece, Tensor]],
    spec: ArraySpec,
    target: jax.ShapeDtypeStruct,
    pool: Executor,
    advance: Callable[[int], object],
) -> jax.Array:
    made: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        whole = (slice(None),) * len(target.shape)
        bounds = tuple(part.indices(size)[:2] for part, size in zip(index or whole, target.shape, strict=True))
        if bounds not in made:
            made.clear()  # replicas of a shard are asked for one after the other
            made[bounds] = read_slice(parts, spec, bounds, target.dtype, pool)
        return made[bounds]

    assert target.sharding is not None
    array = jax.make_array_from_callback(target.shape, target.sharding, shard)
    array.block_until_ready()  # or the buffers of the next weight pile up behind its transfer
    advance(sum(tensor.num_bytes for _, tensor in parts))
    return array


def read_slice(
    parts: list[tuple[Piece, Tensor]],
    spec: ArraySpec,
    bounds: tuple[tuple[int, int], ...],
    dtype: Any,
    pool: Executor,
) -> np.ndarray:
    """The numbers of one weight within `bounds` (start and stop by dim), zeros beyond its logical shape."""
    out = _aligned(tuple(stop - start for start, stop in bounds), np.dtype(dtype))
    if any(stop > size for (_, stop), size in zip(bounds, spec.shape, strict=True)):
        out[...] = 0

    def fill(piece: Piece, tensor: Tensor, wanted: Wanted) -> None:
        place = tuple(
            piece.index[dim] - start
            if dim in piece.index
            else slice(wanted[dim].start - start, wanted[dim].stop - start)
            for dim, (start, _) in zip(spec.dims, bounds, strict=True)
        )
        copy(out[(*place, ...)], _numbers(piece, tensor, spec, wanted))

    filled = [pool.submit(fill, *chunk) for part in parts for chunk in _chunks(*part, spec, bounds)]
    for future in filled:
        future.result()
    return out


def _chunks(
    piece: Piece, tensor: Tensor, spec: ArraySpec, bounds: tuple[tuple[int, int], ...]
) -> Iterator[tuple[Piece, Tensor, Wanted]]:
    """What of a tensor lies within the bounds, cut along its slowest dim."""
    wanted = {}
    for dim, size, (start, stop) in zip(spec.dims, spec.shape, bounds, strict=True):
        if dim not in piece.index:
            wanted[dim] = slice(start, min(stop, size))
        elif not start <= piece.index[dim] < stop:
            return
    if any(part.stop <= part.start for part in wanted.values()):
        return
    slowest = _slowest(piece, wanted)
    rows = max(1, _CHUNK * piece.sizes[slowest] // tensor.num_bytes)
    for start in range(wanted[slowest].start, wanted[slowest].stop, rows):
        yield piece, tensor, wanted | {slowest: slice(start, min(start + rows, wanted[slowest].stop))}


def _slowest(piece: Piece, wanted: Wanted) -> str:
    """The dim of the weight along which the tensor is cut without cutting rows."""
    return next(dim for group in piece.line.groups for dim in group if dim in wanted)


def _numbers(piece: Piece, tensor: Tensor, spec: ArraySpec, wanted: Wanted) -> np.ndarray:
    """What is wanted of a tensor, in the dims of the weight: good until this thread asks again."""
    slowest = _slowest(piece, wanted)
    rows, size = wanted[slowest], piece.sizes[slowest]
    whole = all(part == slice(0, piece.sizes[dim]) for dim, part in wanted.items() if dim != slowest)
    if piece.line.share is not None or not whole:
        return view(tensor.open(), piece, spec)[tuple(wanted.values())]
    if not hasattr(_OF_THREAD, "buffer"):
        _OF_THREAD.buffer = np.empty(_CHUNK, np.uint8)
    row = tensor.num_bytes // size
    numbers = tensor.read(rows.start * row, rows.stop * row, _OF_THREAD.buffer)
    return view(numbers, replace(piece, sizes={**piece.sizes, slowest: rows.stop - rows.start}), spec)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose first byte lies where a CPU device can take it over."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(size + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    return raw[start : start + size].view(dtype).reshape(shape)
