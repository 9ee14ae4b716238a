"""Text to token ids: bytes, a tokenizer.json, or a byte-level BPE trained on the corpus itself.

All three are one `tokenizers` tokenizer, so that the saved file decodes what a model writes. Special tokens that are
spelled out in the text are encoded as the characters they are: the end-of-document id stands nowhere but at ends.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.errors import InputError, nearest
from meshtrain.io.home import expanded
from meshtrain.io.lost_text import LostText
from meshtrain.io.tokens import check_vocab

END_TOKEN = "<|endoftext|>"
_KNOWN_ENDS = (END_TOKEN, "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>")
_PIECE = 1 << 20  # characters; a longer document is encoded in pieces of this size, in parallel
_CUT = re.compile(r"(?<=\S)\n(?=\S)")
_MOST = 1 << 24  # entries of a tokenizer that is learned; the library makes room for all of them at once
_PROBES = ("def f(x):\n", "Two words.\n", "7\n", "é\n", "end\n")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and its identity. `name` is what the user asked for, `text` its tokenizer.json."""

    name: str
    text: str
    vocab_size: int
    end_id: int
    begin_id: int | None = None  # what the tokenizer puts before a text, as the model has seen it

    @property
    def sha256(self) -> str:
        """Identifies the tokenizer, whatever it is called."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def encode(self, documents: list[str]) -> list[np.ndarray]:
        """The ids (uint32) of each document, without an end id; on all cores."""
        if self.name == "byte":
            return [np.frombuffer(document.encode(), np.uint8).astype(np.uint32) for document in documents]
        self._lost.refuse(documents)
        pieces = [list(_pieces(document)) if self._may_cut else [document] for document in documents]
        encoded = iter(self._encode([piece for parts in pieces for piece in parts]))
        joined = [[next(encoded) for _ in parts] for parts in pieces]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in joined]

    def begun(self, ids: np.ndarray) -> np.ndarray:
        """A document's ids with what the tokenizer puts before it; InputError where the end id stands in it."""
        if (ids == self.end_id).any():
            raise InputError(
                f"{self.name}: the text of a document encodes to the end token, id {self.end_id}, so that no one could"
                " tell where it ends. Name another end token (--end-token), or one that the tokenizer declares special."
            )
        return ids if self.begin_id is None else np.insert(ids, 0, self.begin_id)

    def encode_chats(
        self, chats: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids, mask) of each chat: its text, in which special tokens are what they are, and the spans that count.

        The mask is 1 for the tokens of the spans. It has one place more than the ids, for the end token that is left to
        the writer: that counts unless the chat's last token ends its answer already. Where a token would lie across the
        edge of a span, the text is encoded in parts, as it is when a model answers; InputError where it cannot be.
        """
        found = []
        self._lost.refuse([text for text, _ in chats])
        encodings = self._encodings([text for text, _ in chats])
        for (text, spans), encoding in zip(chats, encodings, strict=True):
            ids = np.array(encoding.ids, np.uint32)
            starts, stops = np.array(encoding.offsets, np.int64).reshape(-1, 2).T
            edges = np.array(spans, np.int64).reshape(-1)
            if ((starts[:, None] < edges) & (edges < stops[:, None])).any():
                ids, mask = self._encode_parts(text, edges.tolist())
            else:
                # Edges come in pairs, start and stop: a token behind an odd number of them begins within a span.
                mask = (np.searchsorted(edges, starts, side="right") % 2).astype(np.uint8)
            if len(ids) and ids[-1] == self.end_id:
                found.append((ids[:-1], mask))
            else:
                found.append((ids, np.append(mask, not len(ids) or ids[-1] not in self._special_ids).astype(np.uint8)))
        return found

    def _encode_parts(self, text: str, edges: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """(ids, mask) of a text that is encoded between its edges, every second part counted."""
        if not self._may_cut:
            raise InputError(
                f"{self.name}: a token lies across the beginning or the end of an answer in {text[-200:]!r}, and this"
                " tokenizer's text cannot be cut there. White space at the edge of an answer is the usual reason:"
                " remove it."
            )
        parts = [text[start:stop] for start, stop in pairwise([0, *edges, len(text)])]
        encoded = self._encodings(parts)
        ids = [np.array(encoding.ids, np.uint32) for encoding in encoded]
        mask = [np.full(len(found), number % 2, np.uint8) for number, found in enumerate(ids)]
        return np.concatenate(ids), np.concatenate(mask)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        added = json.loads(self.text).get("added_tokens") or []
        return frozenset(token["id"] for token in added if token.get("special"))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens left out."""
        return self._backend.decode([int(i) for i in ids])

    @cached_property
    def _backend(self) -> Any:
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(self.text)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        return backend

    @cached_property
    def _special_backend(self) -> Any:
        """The backend to which a special token that is spelled out is that token."""
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(self.text)
        backend.no_truncation()
        backend.no_padding()
        return backend

    def _encode(self, texts: list[str]) -> list[np.ndarray]:
        with self._errors_named():
            encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32) for encoding in encodings]

    def _encodings(self, texts: list[str]) -> list[Any]:
        """With the place of each token, special tokens as what they are."""
        with self._errors_named():
            return list(self._special_backend.encode_batch(texts, add_special_tokens=False))

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{self.name}: a text cannot be encoded: {error}.") from None

    @cached_property
    def _lost(self) -> LostText:
        return LostText(self.name, self.text, self._backend)

    @cached_property
    def _may_cut(self) -> bool:
        """Whether text cut after a line encodes to the same ids: not so where a tokenizer marks the start of a text."""
        try:
            whole, *parts = self._encode(["".join(_PROBES), *_PROBES])
        except InputError:  # it does not know all of the probes' characters
            return False
        return np.array_equal(whole, np.concatenate(parts))


def load_tokenizer(spec: str, end_token: str = "") -> Tokenizer:
    """`byte`, or the tokenizer in a file (a tokenizer.json); `end_token` where the file's own cannot be told."""
    if spec == "byte":
        return _byte_tokenizer()
    path = expanded(spec)
    path = path / "tokenizer.json" if path.is_dir() else path
    from tokenizers import Tokenizer as Backend

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if (path.parent / "tokenizer.model").exists() and not path.exists():
            raise InputError(
                f"--tokenizer {spec}: the folder has a tokenizer.model of SentencePiece and no tokenizer.json. Loading"
                " the tokenizer with transformers and saving it there (save_pretrained) makes one."
            ) from None
        raise InputError(
            f"--tokenizer {spec}: cannot be read ({error}). Give 'byte', 'train:SIZE' (for example train:4096) or a"
            f" tokenizer.json.{nearest(spec, ['byte', 'train:4096'])}"
        ) from None
    try:
        backend = Backend.from_str(text)
        vocabulary = backend.get_vocab(with_added_tokens=True)
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"--tokenizer {spec}: not a tokenizer.json that can be loaded: {error}") from None
    end = end_token or _declared_end(path) or next((name for name in _KNOWN_ENDS if name in vocabulary), "")
    if end not in vocabulary:
        named = f"{end!r} is not in its vocabulary" if end else "none of the usual names is in its vocabulary"
        raise InputError(
            f"--tokenizer {spec}: no end-of-document token: {named}. Name one with --end-token."
            f"{nearest(end, vocabulary)}"
        )
    size = max(vocabulary.values()) + 1
    check_vocab(size, f"--tokenizer {spec}")
    return Tokenizer(str(path), text, size, vocabulary[end], _begin(backend))


def trained_size(spec: str) -> int | None:
    """SIZE of `train:SIZE`; None for another kind. InputError where SIZE is not a number from 257 to _MOST."""
    if not spec.startswith("train:"):
        return None
    size = spec.removeprefix("train:")
    if not size.isascii() or not size.isdigit() or len(size) > 20 or not 257 <= int(size) <= _MOST:
        raise InputError(
            f"--tokenizer {spec}: SIZE must be a number of at least 257 (bytes and the end token) and at most {_MOST},"
            " as in train:4096."
        )
    return int(size)


def train_tokenizer(documents: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of at most `size` entries, the end token among them, learned from `documents`."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_TOKEN],  # they come first: id 0
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((piece for document in documents for piece in _pieces(document)), trainer)
    return Tokenizer(f"train:{size}", backend.to_str(pretty=True), backend.get_vocab_size(), end_id=0)


def _byte_tokenizer() -> Tokenizer:
    """Ids 0-255 are the bytes, 256 is the end token."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    # The byte-level alphabet writes the printable bytes as themselves and the others as characters from 256 on.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    backend = Backend(models.BPE(vocab={characters[byte]: byte for byte in range(256)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END_TOKEN, special=True, normalized=False)])
    return Tokenizer("byte", backend.to_str(pretty=True), 257, 256)


def _begin(backend: Any) -> int | None:
    """The one id that a tokenizer puts before a text, or None: what ends a text is not its business here."""
    for probe in ("a", *string.printable, *backend.get_vocab()):
        with suppress(Exception):  # it does not know this text; the library raises plain Exception
            plain, whole = (backend.encode(probe, add_special_tokens=special).ids for special in (False, True))
            if plain:
                before = whole[: next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)]
                return int(before[0]) if len(before) == 1 else None
    return None


def _declared_end(path: Path) -> str:
    """The end token that the file's neighbour, tokenizer_config.json, declares; "" where it does not."""
    try:
        declared = json.loads((path.parent / "tokenizer_config.json").read_text(encoding="utf-8-sig")).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    if isinstance(declared, dict):
        declared = declared.get("content")
    return declared if isinstance(declared, str) else ""


def _pieces(text: str) -> Iterator[str]:
    """A long text in pieces, cut after a line end that stands between two characters that are not space."""
    start = 0
    while len(text) - start > _PIECE and (cut := _CUT.search(text, start + _PIECE)):
        yield text[start : cut.end()]
        start = cut.end()
    yield text[start:]
