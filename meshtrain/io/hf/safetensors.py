"""The safetensors format: an 8-byte length, a JSON header that says where each tensor lies, then the bytes themselves.

Read as maps of the file, so that only the slices that are used are loaded; written in any order, each tensor at the
place that the header promised. Every header is checked against its file's size before a tensor of it is touched.
"""

import errno
import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from meshtrain.errors import InputError

# The format's names of the dtypes that weights have.
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
# And of others, which float32 cannot hold or which only buffers beside the weights have.
_SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}
_SIZES |= {name: dtype.itemsize for name, dtype in DTYPES.items()}
_MOST_HEADER = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: `start` is its first byte in the file."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return math.prod(self.shape) * _SIZES[self.dtype]

    def open(self, writable: bool = False) -> np.ndarray:
        """The tensor as a map of the file: what is not touched is not read. It is freed with the array."""
        if not self.num_bytes:
            return np.empty(self.shape, DTYPES[self.dtype])
        raw = np.memmap(self.file, np.uint8, mode="r+" if writable else "r", offset=self.start, shape=(self.num_bytes,))
        return np.asarray(raw).view(DTYPES[self.dtype]).reshape(self.shape)

    def read(self, start: int, stop: int, buffer: np.ndarray) -> np.ndarray:
        """The tensor's bytes from `start` to `stop` as flat numbers, read into `buffer` (uint8) where they fit.

        Faster than a map for what is used once and whole: no page of the file is mapped. OSError where the file ends.
        """
        into = buffer if stop - start <= buffer.size else np.empty(stop - start, np.uint8)
        left = memoryview(into)[: stop - start]  # type: ignore[arg-type]
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.start + start)
            while left:
                count = file.readinto(left)
                if not count:
                    raise OSError(errno.EIO, f"{self.file} has become shorter")
                left = left[count:]
        return into[: stop - start].view(DTYPES[self.dtype])


def read_header(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file by its name; InputError where header and file do not fit each other."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(8)
            length = struct.unpack("<Q", first)[0] if len(first) == 8 else 0
            if first == b"version ":
                raise InputError(f"{path}: a pointer of Git LFS, not the file itself: run git lfs pull in its folder.")
            if not 2 <= length <= min(_MOST_HEADER, size - 8):
                raise InputError(f"{path}: not a safetensors file, or truncated ({size} bytes).")
            header = json.loads(file.read(length))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not a safetensors file: its header is not JSON.") from None
    found, begin = {}, 8 + length
    try:
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in _SIZES:
                raise InputError(f"{path}: tensor {name} has dtype {entry['dtype']!r}, which is not known here.")
            start, stop = entry["data_offsets"]
            shape = tuple(entry["shape"])
            if any(not isinstance(n, int) or n < 0 for n in (*shape, start, stop)):
                raise InputError(
                    f"{path}: tensor {name}: shape {list(shape)} and bytes {start} to {stop} make no sense."
                )
            tensor = Tensor(name, path, entry["dtype"], shape, begin + start)
            if stop - start != tensor.num_bytes:
                raise InputError(
                    f"{path}: tensor {name} has {stop - start} bytes, and {entry['dtype']}{list(tensor.shape)} takes"
                    f" {tensor.num_bytes}: the file is damaged."
                )
            if begin + stop > size:
                raise InputError(
                    f"{path}: truncated: tensor {name} ends at byte {begin + stop}, and the file has {size}."
                )
            found[name] = tensor
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a safetensors header that can be read ({error!r}).") from None
    end = begin
    for tensor in sorted(found.values(), key=lambda tensor: (tensor.start, tensor.num_bytes)):
        if tensor.start != end:
            raise InputError(
                f"{path}: tensor {tensor.name} does not begin where the one before it ends: it is damaged."
            )
        end += tensor.num_bytes
    if end != size:
        raise InputError(f"{path}: {size - end} bytes lie behind its last tensor: the file is damaged.")
    return found


def create(path: Path, tensors: list[tuple[str, str, tuple[int, ...]]]) -> dict[str, Tensor]:
    """A new file of the right size with the header for (name, dtype, shape) each; where to write each tensor."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        stop = offset + math.prod(shape) * _SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if offset:
            os.posix_fallocate(file.fileno(), 8 + len(text), offset)  # a full disk is known now, not at the last tensor
    return {
        name: Tensor(name, path, dtype, shape, 8 + len(text) + header[name]["data_offsets"][0])
        for name, dtype, shape in tensors
    }
