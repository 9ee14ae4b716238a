"""Writing a token set: documents are appended one by one, shards are cut at a fixed number of tokens.

Nothing here renames or replaces: the caller writes into a folder of its own and moves it into place when it is whole.
`close` leaves every file on disk (fsync) and the manifest written last.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshtrain.io.disk import sync
from meshtrain.io.tokens import END_DTYPE, FORMAT, MANIFEST, MASK_DTYPE, TOKEN_DTYPE, VERSION, Shard


class HashedFile:
    """A new binary file whose SHA-256 is known when it is closed."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = path.open("xb", buffering=1 << 20)
        self._digest = hashlib.sha256()

    def write(self, values: np.ndarray) -> None:
        """Append the bytes of an array."""
        data = values.tobytes()
        self._digest.update(data)
        self._file.write(data)

    def close(self) -> str:
        """To disk; the hexadecimal SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close without a claim that the file is whole."""
        with suppress(OSError):  # what is still to be written may not fit
            self._file.close()


class TokenWriter:
    """Writes one token set into the empty folder `folder`; `tokenizer` is the manifest's record of it."""

    def __init__(
        self,
        folder: Path,
        *,
        tokenizer: dict[str, str],
        vocab_size: int,
        end_id: int,
        shard_tokens: int,
        with_mask: bool = False,
    ) -> None:
        self._folder, self._tokenizer, self._vocab_size, self._end_id = folder, tokenizer, vocab_size, end_id
        self._shard_tokens, self._with_mask = shard_tokens, with_mask
        self._shards: list[Shard] = []
        self._file: HashedFile | None = None
        self._mask: HashedFile | None = None
        self._in_shard = self._documents_in_shard = self._bytes_in_shard = self._num_tokens = 0
        self._ends = HashedFile(folder / "documents.bin")

    def add(self, ids: np.ndarray, num_bytes: int, mask: np.ndarray | None = None) -> None:
        """Append one document (without its end id, which is added here) that stands for `num_bytes` of text.

        `mask` (with_mask only): for each id, 0 where it is not to be predicted, and for the end id if it is one longer;
        else the end id always is.
        """
        if ids.size and int(ids.max()) >= self._vocab_size:
            raise ValueError(f"id {ids.max()} of a document is not below the vocabulary size {self._vocab_size}")
        stream = np.append(ids, self._end_id).astype(TOKEN_DTYPE)
        flags = np.append(np.ones(len(ids)) if mask is None else mask, 1).astype(MASK_DTYPE)[: len(stream)]
        done = 0
        while done < len(stream):
            if self._file is None:
                self._open_shard()
            assert self._file is not None
            piece = slice(done, done + self._shard_tokens - self._in_shard)
            self._file.write(stream[piece])
            if self._mask is not None:
                self._mask.write(flags[piece])
            size = len(stream[piece])
            done, self._in_shard = done + size, self._in_shard + size
            if done == len(stream):
                self._documents_in_shard += 1
                self._bytes_in_shard += num_bytes
            if self._in_shard == self._shard_tokens:
                self._close_shard()
        self._num_tokens += len(stream)
        self._ends.write(np.array([self._num_tokens], END_DTYPE))

    def close(self) -> dict[str, Any]:
        """Finish the set; its manifest, as it was written."""
        if self._file is not None:
            self._close_shard()
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": "uint32",
            "tokenizer": self._tokenizer,
            "vocab_size": self._vocab_size,
            "end_id": self._end_id,
            "num_tokens": self._num_tokens,
            "num_documents": sum(shard.num_documents for shard in self._shards),
            "num_bytes": sum(shard.num_bytes for shard in self._shards),
            "documents_sha256": self._ends.close(),
            "shards": [{key: value for key, value in asdict(shard).items() if value != ""} for shard in self._shards],
        }
        write_json(self._folder / MANIFEST, manifest)
        sync(self._folder)
        return manifest

    def abandon(self) -> None:
        """Let go of the files after an error; what was written is not a token set."""
        for file in (self._file, self._mask, self._ends):
            if file is not None:
                file.abandon()

    def _open_shard(self) -> None:
        stem = f"shard-{len(self._shards):05d}"
        self._file = HashedFile(self._folder / f"{stem}.bin")
        self._mask = HashedFile(self._folder / f"{stem}.mask") if self._with_mask else None

    def _close_shard(self) -> None:
        assert self._file is not None
        mask = {} if self._mask is None else {"mask_file": self._mask.name, "mask_sha256": self._mask.close()}
        self._shards.append(
            Shard(
                file=self._file.name,
                num_tokens=self._in_shard,
                num_documents=self._documents_in_shard,
                num_bytes=self._bytes_in_shard,
                sha256=self._file.close(),
                **mask,
            )
        )
        self._file = self._mask = None
        self._in_shard = self._documents_in_shard = self._bytes_in_shard = 0


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a new JSON file through to the disk."""
    with path.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
