"""The rows that a proof trains on: packed documents, padding, and a loss mask that is as uneven as masks get.

An even mask hides a mean of means; equal rows hide a swapped microbatch. So every row differs, and by turns a row is
packed, counts only its last quarter, ends in padding, or counts nothing at all.
"""

from dataclasses import dataclass

import numpy as np

from meshtrain.io.rows import IntArray, Rows

NUM_KINDS = 4


@dataclass(frozen=True)
class ProofRows:
    """An endless `Source` of rows of `length` tokens below `vocab`; row i is a pure function of (seed, i)."""

    vocab: int
    length: int
    seed: int = 0
    num_rows: None = None

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """Rows `index` [n] with next-token labels inside each document."""
        made = [self._row(int(i)) for i in np.asarray(index)]
        return {name: np.stack([row[name] for row in made]).astype(np.int32) for name in made[0]}

    def _row(self, i: int) -> Rows:
        rng = np.random.default_rng((self.seed, i))
        length, kind = self.length, i % NUM_KINDS
        tokens = rng.integers(0, self.vocab, length)
        starts = np.unique(np.append(0, rng.integers(1, length, 2))) if length > 1 else np.array([0])
        segments = np.searchsorted(starts, np.arange(length), side="right")
        positions = np.arange(length) - starts[segments - 1]
        if kind == 2:
            segments[length - length // 4 :] = 0
        labels = np.append(tokens[1:], 0)
        counted = np.append(segments[1:] == segments[:-1], False) & (segments > 0) & (rng.random(length) < 0.9)
        if kind == 1:
            counted[: length - length // 4] = False
        if kind == 3:
            counted[:] = False
        return {
            "tokens": tokens,
            "labels": np.where(counted, labels, -1),
            "positions": np.where(segments > 0, positions, 0),
            "segments": segments,
        }
