"""Documents from files, in an order that depends on nothing but the names: text, JSON lines, Parquet.

A corpus is walked as often as needed, one document in memory at a time. `survey` is the first walk: it finds every
input that cannot be used before any work is done, and gives each document the hash that decides its side of the
train / held-out split (equal documents stay on one side).
"""

import codecs
import glob
import gzip
import hashlib
import json
import os
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from meshtrain.errors import InputError, nearest
from meshtrain.io.chat import ChatTemplate, Span, chat_of

STDLIB = "python-stdlib"  # the input that every machine has: the standard library's own sources
_NOT_STDLIB = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_PARQUET_ROWS = 1024  # rows of a Parquet file in memory at once
_PACKED = (".zst", ".bz2", ".xz", ".lz4", ".zip", ".7z", ".tar", ".tgz")  # and not .gz alone


class Document(NamedTuple):
    """One document; `hash` is 64 bits of its content. answers: of a chat, the spans of its text that are learned."""

    text: str
    num_bytes: int
    hash: int
    answers: tuple[Span, ...] | None = None


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus; in JSON lines and Parquet the text stands under `text_key`.

    With a `chat` template the files are JSON lines of chats, whose messages stand under `text_key`.
    """

    files: tuple[Path, ...]
    text_key: str = "text"
    chat: ChatTemplate | None = None

    def documents(self) -> Iterator[Document]:
        """Every document that is not empty, in order. InputError with file and place where one cannot be read."""
        for path in self.files:
            try:
                for where, text, answers in self._read(path):
                    try:
                        data = text.encode()
                    except UnicodeEncodeError as error:
                        raise InputError(f"{where}: not text: {error.reason} at character {error.start}.") from None
                    if data:
                        digest = hashlib.blake2b(data, digest_size=8).digest()
                        yield Document(text, len(data), int.from_bytes(digest, "little"), answers)
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
            except (EOFError, zlib.error) as error:
                raise InputError(f"{path}: damaged gzip file: {error}") from None

    def _read(self, path: Path) -> Iterator[tuple[str, str, tuple[Span, ...] | None]]:
        """(where it stands, text, answers) of each document of a file."""
        kind = _kind(path)
        if self.chat is not None:
            if kind != "jsonl":
                raise InputError(f"{path}: chats are read from JSON lines (.jsonl, also .gz), one chat a line.")
            for where, record in _records(path, self.text_key):
                yield where, *self.chat.document(chat_of(record, self.text_key, where), where)
            return
        read = {"parquet": _read_parquet, "jsonl": _read_jsonl}.get(kind, _read_text)
        for where, text in read(path, self.text_key):
            yield where, text, None


@dataclass(frozen=True)
class Survey:
    """What a first walk over a corpus found; `hashes` holds each document's hash, in order."""

    num_bytes: int
    hashes: np.ndarray

    @property
    def num_documents(self) -> int:
        """Documents that are not empty."""
        return len(self.hashes)

    @property
    def sha256(self) -> str:
        """Identifies the documents and their order."""
        return hashlib.sha256(self.hashes.astype("<u8").tobytes()).hexdigest()


def find_files(patterns: tuple[str, ...], text_key: str = "text", chat: ChatTemplate | None = None) -> Corpus:
    """The corpus behind file names, glob patterns (`**` goes into folders) and `python-stdlib`.

    Files come in the order of the patterns, sorted within each, each once. InputError where a pattern finds no file.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        paths = _stdlib_files() if pattern == STDLIB else _matches(pattern)
        if not paths:
            raise InputError(_nothing_found(pattern))
        for path in paths:
            found.setdefault(os.path.realpath(path), Path(path))
    if not found:
        raise InputError(f"no input given: name files or glob patterns, or {STDLIB!r}.")
    return Corpus(tuple(found.values()), text_key, chat)


def survey(corpus: Corpus, on_bytes: Callable[[int], object] = lambda num: None) -> Survey:
    """Walk the whole corpus once; InputError where a document cannot be read or there is none at all."""
    hashes, num_bytes = [], 0
    for document in corpus.documents():
        hashes.append(document.hash)
        num_bytes += document.num_bytes
        on_bytes(document.num_bytes)
    if not hashes:
        names = ", ".join(str(path) for path in corpus.files[:3]) + (", ..." if len(corpus.files) > 3 else "")
        raise InputError(f"empty corpus: no text in {len(corpus.files)} file(s) ({names}).")
    return Survey(num_bytes, np.array(hashes, np.uint64))


def _matches(pattern: str) -> list[str]:
    expanded = os.path.expanduser(pattern)
    if os.path.isfile(expanded):  # a name may hold characters that mean something in a pattern
        return [expanded]
    _refuse_unreadable(expanded)
    return sorted(path for path in glob.iglob(expanded, recursive=True) if os.path.isfile(path))


def _refuse_unreadable(pattern: str) -> None:
    """InputError for a folder below `**` that cannot be read: a pattern would pass over all that is in it."""

    def refuse(error: OSError) -> None:
        raise InputError(f"{pattern}: the folder {error.filename} cannot be read: {error.strerror or error}.")

    root, recursive, _ = pattern.partition("**")
    for folder in glob.glob(root or os.curdir) if recursive else ():
        for _ in os.walk(folder, onerror=refuse):
            pass


def _nothing_found(pattern: str) -> str:
    if os.path.isdir(os.path.expanduser(pattern)):
        return f"{pattern}: is a folder; name its files, for example '{os.path.join(pattern, '**', '*.txt')}'."
    return f"{pattern}: no file has this name or matches this pattern.{nearest(pattern, [STDLIB])}"


def _stdlib_files() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = (path for path in root.rglob("*.py") if not _NOT_STDLIB & set(path.relative_to(root).parts))
    return sorted(str(path) for path in paths)


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(suffixes[-1] if suffixes else "", "text")


def _open(path: Path) -> BinaryIO:
    packed = next((suffix for suffix in path.suffixes[-2:] if suffix.lower() in _PACKED), None)
    if packed is not None:
        raise InputError(f"{path}: {packed} files are not read: unpack it, or write it again as .gz.")
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _read_text(path: Path, text_key: str) -> Iterator[tuple[str, str]]:
    """The whole file as one document."""
    with _open(path) as file:
        text = _decoded(file.read(), str(path))
    if ".json" in (suffix.lower() for suffix in path.suffixes[-2:]):
        _refuse_records(text, str(path), text_key)
    yield str(path), text


def _refuse_records(text: str, where: str, text_key: str) -> None:
    """InputError where what would be read as one text is records, whose text stands under their key."""
    try:
        first, end = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return
    several = isinstance(first, list) or bool(text.lstrip()[end:].strip())
    first = first[0] if isinstance(first, list) and first else first
    if several and isinstance(first, dict) and text_key in first:
        raise InputError(
            f"{where}: holds JSON records with the key {text_key!r}, and a .json file is read as one text, braces and"
            " all. Write one object a line, in a file that ends in .jsonl."
        )


def _decoded(data: bytes, where: str) -> str:
    """UTF-8 as text, without the mark (BOM) that some programs put before it."""
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text: {error.reason} (0x{data[error.start]:02x}) at byte {error.start}."
        ) from None


def _read_jsonl(path: Path, text_key: str) -> Iterator[tuple[str, str]]:
    """One document a line."""
    for where, record in _records(path, text_key):
        if text_key not in record:
            raise InputError(
                f"{where}: no key {text_key!r} (keys: {', '.join(record) or 'none'}).{nearest(text_key, record)}"
                " --text-key names the one that holds the text."
            )
        if not isinstance(record[text_key], str):
            raise InputError(f"{where}: {text_key!r} holds {type(record[text_key]).__name__}, not a string.")
        yield where, record[text_key]


def _records(path: Path, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, object) of each line; blank lines are passed over. `key`: what is looked for, for errors."""
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if not (line := line.strip()):
                continue
            text = _decoded(line, where)
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where}: not JSON that can be read: {error}") from None
            if not isinstance(record, dict):
                raise InputError(f"{where}: a JSON {type(record).__name__}, where an object with {key!r} belongs.")
            yield where, record


def _read_parquet(path: Path, text_key: str) -> Iterator[tuple[str, str]]:
    """One document a row, streamed in batches of rows."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if text_key not in schema.names:
                raise InputError(
                    f"{path}: no column {text_key!r} (columns: {', '.join(schema.names)})."
                    f"{nearest(text_key, schema.names)} --text-key names the one that holds the text."
                )
            if schema.names.count(text_key) > 1:
                raise InputError(f"{path}: {schema.names.count(text_key)} columns are called {text_key!r}; keep one.")
            if not _is_text(schema.field(text_key).type):
                raise InputError(f"{path}: column {text_key!r} holds {schema.field(text_key).type}, not strings.")
            number = 0
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=[text_key]):
                for text in batch.column(0).to_pylist():
                    if text is None:
                        raise InputError(f"{path}: column {text_key!r} holds no text in row {number}.")
                    yield f"{path} row {number}", text
                    number += 1
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: column {text_key!r} holds bytes that are not UTF-8: {error.reason}.") from None
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: damaged Parquet file: {error}") from None


def _is_text(kind: object) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type  # type: ignore[attr-defined]
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
