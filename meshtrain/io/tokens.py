"""A token set on disk: a folder of raw uint32 shards, an index of document ends, and a manifest that names them all.

    manifest.json       format, version, tokenizer, vocab_size, end_id, counts, and each file's size and SHA-256
    shard-00000.bin     token ids, little-endian uint32; a document may go on in the next shard
    shard-00000.mask    optional: one byte per token, 0 where the token is not to be predicted
    documents.bin       where each document ends in the whole stream (after its end id), little-endian int64

Readers map the files into memory. Every size is checked when the set is opened and again before each read, every id
when it is read, so damaged data is one message with file, sample and id, and never a wrong number.
"""

import bisect
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.errors import InputError

FORMAT, VERSION = "meshtrain-tokens", 1
TOKEN_DTYPE, END_DTYPE, MASK_DTYPE = np.dtype("<u4"), np.dtype("<i8"), np.dtype("u1")
MANIFEST = "manifest.json"
MOST_IDS = np.iinfo(np.int32).max + 1  # of a vocabulary: batches hold ids as int32


@dataclass(frozen=True)
class Shard:
    """One shard's record in the manifest. Documents and bytes of text are counted where the document ends."""

    file: str
    num_tokens: int
    num_documents: int
    num_bytes: int
    sha256: str
    mask_file: str = ""
    mask_sha256: str = ""


@dataclass(frozen=True)
class TokenSet:
    """A token set open for reading by position in its stream; safe to share between threads."""

    folder: Path
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    end_id: int
    documents_sha256: str
    shards: tuple[Shard, ...]

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of the stream, end ids included."""
        return sum(shard.num_tokens for shard in self.shards)

    @cached_property
    def num_documents(self) -> int:
        """Documents of the stream, each with one end id."""
        return sum(shard.num_documents for shard in self.shards)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of text (UTF-8) that the tokens stand for."""
        return sum(shard.num_bytes for shard in self.shards)

    @property
    def bytes_per_token(self) -> float:
        """Bits per byte = mean cross-entropy per token / ln 2 / bytes_per_token."""
        return self.num_bytes / self.num_tokens

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over what is in the set (not over where it lies): two equal ones hold the same tokens."""
        content = {key: value for key, value in self._content().items() if key != "folder"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def read(self, start: int, count: int, sample: int | None = None) -> np.ndarray:
        """Token ids [start, start + count) as int32; errors name `sample`, the row of the run that asked for them."""
        ids = self._gather(self._shard, TOKEN_DTYPE, start, count, sample)
        if count and int(ids.max()) >= self.vocab_size:
            place = int(np.argmax(ids >= self.vocab_size))
            number, offset = self._locate(start + place)
            raise InputError(
                f"{self.folder / self.shards[number].file}: token id {ids[place]} at token {offset} of the file"
                f"{_asked_by(sample)} is not below the vocabulary size {self.vocab_size}: the file is damaged, or was"
                f" written for another tokenizer. Prepare the corpus again."
            )
        return ids.astype(np.int32)

    def read_mask(self, start: int, count: int, sample: int | None = None) -> np.ndarray | None:
        """For tokens [start, start + count): 0 where a token is not to be predicted; None where all of them are."""
        if not any(shard.mask_file for shard in self.shards):
            return None
        return self._gather(self._mask, MASK_DTYPE, start, count, sample)

    def document_ends(self, start: int, stop: int) -> np.ndarray:
        """The ends in (start, stop] of documents, as int64 positions in the stream (one past the end id)."""
        _check_size(self.folder / "documents.bin", self.num_documents, END_DTYPE)
        stop = max(start, stop)
        first, last = np.searchsorted(self._ends, [start, stop], side="right")
        ends = np.array(self._ends[first:last])
        before = self._ends[first - 1] if first else 0
        behind = self._ends[last] if last < self.num_documents else max(self.num_tokens, stop) + 1
        if before > start or behind <= stop or (np.diff([before, *ends, behind]) <= 0).any():
            raise InputError(
                f"{self.folder / 'documents.bin'}: the ends of documents {first} to {last} are not in order: the file"
                " is damaged. Prepare the corpus again."
            )
        return ends

    def check_ends(self, ids: np.ndarray, ends: np.ndarray, sample: int | None = None) -> None:
        """InputError unless `ids`, the tokens before the document ends `ends`, are all the end token."""
        if (wrong := np.flatnonzero(ids != self.end_id)).size:
            number, offset = self._locate(int(ends[wrong[0]]) - 1)
            raise InputError(
                f"{self.folder / self.shards[number].file}: token {offset} of the file{_asked_by(sample)} is"
                f" {ids[wrong[0]]}, and documents.bin has the end of a document there, which is {self.end_id}: one of"
                " the two files is damaged. Prepare the corpus again."
            )

    def verify(self) -> None:
        """Read every file and compare its SHA-256 with the manifest; InputError where one differs."""
        expected = {"documents.bin": self.documents_sha256}
        for shard in self.shards:
            expected[shard.file] = shard.sha256
            if shard.mask_file:
                expected[shard.mask_file] = shard.mask_sha256
        for name, digest in expected.items():
            if sha256_of(self.folder / name) != digest:
                raise InputError(
                    f"{self.folder / name}: its SHA-256 is not the one in {MANIFEST}: the file is damaged. Prepare the"
                    " corpus again."
                )

    def _content(self) -> dict[str, Any]:
        return asdict(self)

    @cached_property
    def _bounds(self) -> list[int]:
        return list(accumulate((shard.num_tokens for shard in self.shards), initial=0))

    @cached_property
    def _maps(self) -> dict[str, np.ndarray]:
        return {}

    @cached_property
    def _ends(self) -> np.ndarray:
        return _map(self.folder / "documents.bin", self.num_documents, END_DTYPE)

    def _locate(self, position: int) -> tuple[int, int]:
        """(number of the shard, token within it) of a position in the stream."""
        number = bisect.bisect_right(self._bounds, position) - 1
        return number, position - self._bounds[number]

    def _shard(self, number: int) -> np.ndarray:
        return self._mapped(self.shards[number].file, self.shards[number].num_tokens, TOKEN_DTYPE)

    def _mask(self, number: int) -> np.ndarray:
        shard = self.shards[number]
        if not shard.mask_file:
            return np.ones(shard.num_tokens, MASK_DTYPE)
        return self._mapped(shard.mask_file, shard.num_tokens, MASK_DTYPE)

    def _mapped(self, name: str, count: int, dtype: np.dtype) -> np.ndarray:
        # The size is checked before each access: touching a map past the end of its file would kill the process.
        _check_size(self.folder / name, count, dtype)
        if name not in self._maps:
            self._maps[name] = _map(self.folder / name, count, dtype)
        return self._maps[name]

    def _gather(
        self, shard: Callable[[int], np.ndarray], dtype: np.dtype, start: int, count: int, sample: int | None
    ) -> np.ndarray:
        """`count` elements from `start` on, over as many shards as it takes; a copy."""
        if start < 0 or start + count > self.num_tokens:
            raise ValueError(f"tokens [{start}, {start + count}) of a stream of {self.num_tokens}")
        result, done = np.empty(count, dtype), 0
        while done < count:
            number, offset = self._locate(start + done)
            try:
                piece = shard(number)[offset : offset + count - done]
            except InputError as error:
                raise InputError(f"{error}{_asked_by(sample)}") from None
            result[done : done + len(piece)] = piece
            done += len(piece)
        return result


def open_token_set(folder: str | Path) -> TokenSet:
    """The token set in `folder`; InputError where it is missing, of another format or version, or damaged."""
    folder = Path(folder)
    manifest = read_manifest(folder, FORMAT, VERSION, "a token set")
    try:
        if manifest["dtype"] != "uint32":
            raise InputError(f"{folder / MANIFEST}: dtype is {manifest['dtype']!r}; token shards are uint32.")
        known = {field.name for field in fields(Shard)}
        tokens = TokenSet(
            folder=folder,
            tokenizer=manifest["tokenizer"]["name"],
            tokenizer_sha256=manifest["tokenizer"]["sha256"],
            vocab_size=_count(manifest["vocab_size"]),
            end_id=_count(manifest["end_id"]),
            documents_sha256=manifest["documents_sha256"],
            shards=tuple(Shard(**{k: v for k, v in shard.items() if k in known}) for shard in manifest["shards"]),
        )
        counts = {name: _count(manifest[name]) for name in ("num_tokens", "num_documents", "num_bytes")}
        for shard in tokens.shards:
            _ = [_count(getattr(shard, name)) for name in counts]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / MANIFEST}: not a manifest that this version can read ({error!r}).") from None
    check_vocab(tokens.vocab_size, str(folder / MANIFEST))
    if any(getattr(tokens, name) != count for name, count in counts.items()):
        raise InputError(f"{folder / MANIFEST}: its totals are not the sums over its shards: the file is damaged.")
    _check_size(folder / "documents.bin", tokens.num_documents, END_DTYPE)
    for shard in tokens.shards:
        _check_size(folder / shard.file, shard.num_tokens, TOKEN_DTYPE)
        if shard.mask_file:
            _check_size(folder / shard.mask_file, shard.num_tokens, MASK_DTYPE)
    return tokens


def read_manifest(folder: Path, form: str, version: int, what: str) -> dict[str, Any]:
    """The manifest of a folder as a mapping; InputError unless it is one of this format and version."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing = "it has no manifest.json" if folder.is_dir() else "there is no such folder"
        raise InputError(f"{folder}: not {what}: {missing}. `python -m meshtrain.prepare` makes one.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        raise InputError(f"{path}: not the manifest of {what} (its format is not {form!r}).")
    if manifest.get("version") != version:
        raise InputError(f"{path}: version {manifest.get('version')}; this program reads version {version}.")
    return manifest


def check_vocab(vocab_size: int, source: str) -> None:
    """InputError where a vocabulary has ids that do not fit the int32 in which a batch holds them."""
    if vocab_size > MOST_IDS:
        raise InputError(f"{source}: a vocabulary of {vocab_size} ids; ids from {MOST_IDS} on cannot be trained on.")


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file; InputError where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _count(value: Any) -> int:
    """A whole number of a manifest; TypeError where it is none."""
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _map(path: Path, count: int, dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(count,))) if count else np.empty(0, dtype)


def _check_size(path: Path, count: int, dtype: np.dtype) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if size != count * dtype.itemsize:
        kind = "truncated" if size < count * dtype.itemsize else "of another dtype or overwritten"
        raise InputError(
            f"{path}: has {size} bytes where {count} values of {dtype.name} are {count * dtype.itemsize}: the file is"
            f" {kind}. Prepare the corpus again."
        )


def _asked_by(sample: int | None) -> str:
    return "" if sample is None else f" (asked for by sample {sample})"
