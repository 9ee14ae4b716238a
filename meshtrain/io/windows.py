"""Windows of a token stream as rows: shuffled without end for training, in order and each once for evaluation.

Window w covers the tokens [w * length, (w + 1) * length); the label of a token is the next token of the stream, so an
epoch predicts every token once (but for the rest at the end of the stream that fills no window). Positions restart and
segments step where a document begins; a window that begins inside a document counts from its own first token.
"""

from dataclasses import dataclass

import numpy as np

from meshtrain.errors import InputError
from meshtrain.io.permutation import keyed, permuted
from meshtrain.io.rows import IntArray, Rows, padding_rows
from meshtrain.io.tokens import TokenSet


@dataclass(frozen=True)
class Windows:
    """Endless training rows over one token set: row i is window permutation(seed, i // num_rows)[i % num_rows].

    `isolate_documents`: each document is a segment of its own and the last token of one does not predict the first of
    the next; otherwise a row is one segment and labels cross documents. `shift_windows`: each epoch closes the stream
    to a ring and begins its windows at a place of its own, so that epochs cut documents, and leave out a rest, at
    other places.
    """

    tokens: TokenSet
    length: int
    seed: int = 0
    isolate_documents: bool = True
    shift_windows: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"data.length: {self.length} must be at least 1.")
        if self.tokens.num_tokens < self.length:
            raise InputError(
                f"{self.tokens.folder}: {self.tokens.num_tokens} tokens do not fill one row of"
                f" data.length={self.length}; prepare more text, or use a length of at most {self.tokens.num_tokens}."
            )

    @property
    def num_rows(self) -> int:
        """Windows of one epoch."""
        return self.tokens.num_tokens // self.length

    def starts(self, index: IntArray) -> np.ndarray:
        """Where in the stream the rows `index` [n] begin, in tokens; int64 [n]."""
        index = np.asarray(index, np.uint64)
        epoch, within = np.divmod(index, np.uint64(self.num_rows))
        starts = permuted(within, self.num_rows, self.seed, epoch) * self.length
        if self.shift_windows:
            offset = keyed(self.seed, epoch, 1) % np.uint64(self.tokens.num_tokens)
            starts = (starts + offset.astype(np.int64)) % self.tokens.num_tokens
        return starts

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """The rows `index` [n]; raises InputError where the data is damaged."""
        rows = padding_rows(len(index), self.length)
        samples = np.asarray(index if sample is None else sample).tolist()
        for row, (start, number) in enumerate(zip(self.starts(index).tolist(), samples, strict=True)):
            _fill(rows, row, self.tokens, start, self.isolate_documents, number)
            if (before := self.tokens.num_tokens - start) < self.length:  # over the seam of the ring
                _fill(rows, row, self.tokens, 0, self.isolate_documents, number, column=before)
        return rows


@dataclass(frozen=True)
class HeldOutWindows:
    """Every token of a set once, in order; the last window is padded, and a row past the end is all padding."""

    tokens: TokenSet
    length: int
    isolate_documents: bool = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"data.length: {self.length} must be at least 1.")

    @property
    def num_rows(self) -> int:
        """Windows of the set."""
        return -(-self.tokens.num_tokens // self.length)

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """The rows `index` [n]; raises InputError where the data is damaged."""
        rows = padding_rows(len(index), self.length)
        samples = np.asarray(index if sample is None else sample).tolist()
        for row, (window, number) in enumerate(zip(np.asarray(index).tolist(), samples, strict=True)):
            if window < self.num_rows:
                _fill(rows, row, self.tokens, window * self.length, self.isolate_documents, number)
        return rows


def _fill(rows: Rows, row: int, tokens: TokenSet, start: int, isolate: bool, sample: int, column: int = 0) -> None:
    """Write the stream from `start` into `row` from `column` to the row's or the stream's end, whichever is first."""
    length = rows["tokens"].shape[1]
    count = min(length - column, tokens.num_tokens - start)
    stop = column + count
    ids = tokens.read(start, min(count + 1, tokens.num_tokens - start), sample)
    labels = rows["labels"][row, column:stop]
    rows["tokens"][row, column:stop] = ids[:count]
    labels[: len(ids) - 1] = ids[1:]
    if (counted := tokens.read_mask(start + 1, len(ids) - 1, sample)) is not None:
        labels[: len(ids) - 1][counted == 0] = -1

    begins = np.zeros(1, np.int64)
    if isolate:
        ends = tokens.document_ends(start, start + count) - start
        tokens.check_ends(ids[ends - 1], start + ends, sample)
        labels[ends - 1] = -1
        begins = np.append(begins, ends[ends < count])
    sizes = np.diff(begins, append=count)
    first_segment = 1 + (int(rows["segments"][row, column - 1]) if column else 0)
    rows["segments"][row, column:stop] = np.repeat(np.arange(len(begins)) + first_segment, sizes)
    rows["positions"][row, column:stop] = np.arange(count) - np.repeat(begins, sizes)
