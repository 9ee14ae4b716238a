"""What the trainer reads: rows, and the `Source` that gives row i of the run as a pure function of (data, seed, i).

Because no source keeps a position, the place of a run in its data is one integer, whatever the number of processes.
"""

from typing import Any, Protocol

import numpy as np

IntArray = np.ndarray[Any, np.dtype[Any]]
# n rows: "tokens", "labels" (-1: not counted), "positions", "segments" (0: padding), each int32 [n, length].
Rows = dict[str, IntArray]
FIELDS = ("tokens", "labels", "positions", "segments")


def batch_fields(packed: bool) -> tuple[str, ...]:
    """The fields that a batch needs: without documents to keep apart, no segments."""
    return FIELDS if packed else tuple(name for name in FIELDS if name != "segments")


class Source(Protocol):
    """Rows by random access."""

    @property
    def length(self) -> int:
        """Tokens of a row."""

    @property
    def num_rows(self) -> int | None:
        """Rows of one epoch; None where the source has no end."""

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """The rows `index` [n] of this source; `sample` [n] are the ids that errors name (default: `index`).

        Raises InputError, with file, sample and token id, where the data is damaged.
        """


def padding_rows(num: int, length: int) -> Rows:
    """Rows without a single counted token: segment 0, label -1."""
    rows = {name: np.zeros((num, length), np.int32) for name in FIELDS}
    rows["labels"][:] = -1
    return rows
