"""Random tokens for benchmarks: uniform ids, each a hash of (seed, sample, column), so nothing is read or stored."""

from dataclasses import dataclass

import numpy as np

from meshtrain.errors import InputError
from meshtrain.io.permutation import keyed
from meshtrain.io.rows import IntArray, Rows


@dataclass(frozen=True)
class Synthetic:
    """An endless source of rows of `length` independent ids below `vocab`; each row is one document."""

    vocab: int
    length: int
    seed: int = 0
    num_rows: None = None

    def __post_init__(self) -> None:
        if self.vocab < 1 or self.length < 1:
            raise InputError(f"synthetic data: vocab={self.vocab} and length={self.length} must both be at least 1.")

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """Rows `index` [n]; the label of each token is the next one, also for the last."""
        columns = np.arange(self.length + 1, dtype=np.uint64)
        hashed = keyed(self.seed, np.asarray(index)[:, None], columns)
        # The upper 32 bits scaled to the vocabulary: unlike a modulo it favours no id by more than 2^-32.
        ids = ((hashed >> np.uint64(32)) * np.uint64(self.vocab) >> np.uint64(32)).astype(np.int32)
        positions = np.broadcast_to(np.arange(self.length, dtype=np.int32), (len(ids), self.length))
        return {
            "tokens": ids[:, :-1].copy(),
            "labels": ids[:, 1:].copy(),
            "positions": positions.copy(),
            "segments": np.ones_like(positions),
        }
