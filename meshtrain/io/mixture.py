"""A weighted mixture: sample i of the run belongs to one source, and to one index within it, by arithmetic alone.

The sources stand at the leaves of a binary tree. At each fork sample j goes left where round(j * share) steps up, so
after any number of samples each source has had its share up to a rounding at each fork above it: no drift, no random
excess, no counters to save. Shares are exact fractions.

Weights may change at a sample of the run: what was before stays as it was, and each source goes on where it stood.
"""

import heapq
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Union

import numpy as np

from meshtrain.errors import InputError
from meshtrain.io.rows import IntArray, Rows, Source, padding_rows


@dataclass(frozen=True)
class Fork:
    """`share` of the samples that arrive here go left, the others right; a leaf is the number of a source."""

    share: Fraction
    left: Union["Fork", int]
    right: Union["Fork", int]


@dataclass(frozen=True)
class Era:
    """The samples from `start` on are dealt out by `tree`; `taken`: how many of each source lie before them."""

    start: int
    tree: Fork | int
    taken: tuple[int, ...]


@dataclass(frozen=True)
class Mixture:
    """`sources` in proportion to `weights` (positive, any scale), sample by sample.

    changes: (sample, weights) in order: the weights from that sample of the run on.
    """

    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    changes: tuple[tuple[int, tuple[float, ...]], ...] = ()
    num_rows: None = None  # each source has its own epochs

    def __post_init__(self) -> None:
        for key, weights in (("weights", self.weights), *(("changes", weights) for _, weights in self.changes)):
            if len(weights) != len(self.sources) or not self.sources:
                raise InputError(
                    f"data.{key}: {len(weights)} weights for {len(self.sources)} paths; give one for each path."
                )
            if not all(0 < weight < float("inf") for weight in weights):
                raise InputError(
                    f"data.{key}: {list(weights)} must all be positive and finite; leave out unused paths."
                )
        samples = [sample for sample, _ in self.changes]
        if samples != sorted(set(samples)) or any(sample < 1 for sample in samples):
            raise InputError(
                f"data.changes: the samples {samples} must be at least 1, and each above the one before it."
            )
        if len({source.length for source in self.sources}) > 1:
            raise InputError("data: all sources of a mixture must have rows of one length.")

    @property
    def length(self) -> int:
        """Tokens of a row."""
        return self.sources[0].length

    @cached_property
    def tree(self) -> Fork | int:
        """The forks of the first weights."""
        return _tree(self.weights)

    @cached_property
    def eras(self) -> tuple[Era, ...]:
        """The first weights and each change, in order."""
        found = [Era(0, self.tree, (0,) * len(self.sources))]
        for sample, weights in self.changes:
            before = found[-1]
            counts = _counts(before.tree, sample - before.start)
            taken = tuple(old + counts.get(number, 0) for number, old in enumerate(before.taken))
            found.append(Era(sample, _tree(weights), taken))
        return tuple(found)

    def locate(self, sample: int) -> tuple[int, int]:
        """(number of the source, index within it) of one sample of the run."""
        era = self.eras[bisect_right([era.start for era in self.eras], int(sample)) - 1]
        node, index = era.tree, int(sample) - era.start
        while isinstance(node, Fork):
            num_left = _rounded(index, node.share)
            if _rounded(index + 1, node.share) > num_left:
                node, index = node.left, num_left
            else:
                node, index = node.right, index - num_left
        return node, index + era.taken[node]

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        """The rows of the samples `index` [n], each from its source; all sources are read in one call each."""
        index = np.asarray(index)
        sample = index if sample is None else sample
        places = np.array([self.locate(i) for i in index.tolist()], np.int64).reshape(-1, 2)
        merged = padding_rows(len(index), self.length)
        for number, source in enumerate(self.sources):
            mine = np.flatnonzero(places[:, 0] == number)
            if mine.size:
                for name, values in source.rows(places[mine, 1], sample[mine]).items():
                    merged[name][mine] = values
        return merged


def _tree(weights: tuple[float, ...]) -> Fork | int:
    """The forks, built like a Huffman code: heavy sources near the root, so that few roundings add up."""
    # str: a weight written 0.1 means one tenth, not the nearest binary fraction.
    heap: list[tuple[Fraction, int, Fork | int]] = [
        (Fraction(str(weight)), number, number) for number, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        (light, _, right), (heavy, order, left) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (light + heavy, order + len(weights), Fork(heavy / (light + heavy), left, right)))
    return heap[0][2]


def _counts(node: Fork | int, num: int) -> dict[int, int]:
    """How many of the first `num` samples that arrive at a fork each source gets."""
    if not isinstance(node, Fork):
        return {node: num}
    left = _rounded(num, node.share)
    return _counts(node.left, left) | _counts(node.right, num - left)


def _rounded(count: int, share: Fraction) -> int:
    """count * share rounded half up, exactly."""
    return (2 * count * share.numerator + share.denominator) // (2 * share.denominator)
