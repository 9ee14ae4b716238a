"""Mixtures: exact shares at every point of the run, each source walked in its own order without a gap."""

from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtrain.errors import InputError
from meshtrain.io.mixture import Fork, Mixture
from meshtrain.io.rows import Source
from meshtrain.io.synthetic import Synthetic
from meshtrain.io.windows import Windows
from tests.io.sets import numbered, write_set

WEIGHTS = st.lists(st.floats(0.001, 1000).map(lambda w: float(f"{w:.3g}")), min_size=1, max_size=7)


def mixture(*weights: float) -> Mixture:
    return Mixture(tuple(Synthetic(50, 4, number) for number in range(len(weights))), weights)


def depth(node: Fork | int) -> int:
    return 0 if isinstance(node, int) else 1 + max(depth(node.left), depth(node.right))


@given(weights=WEIGHTS)
@settings(max_examples=30, deadline=None)
def test_shares_are_exact_at_every_point(weights: list[float]) -> None:
    mixed = mixture(*weights)
    shares = [Fraction(str(w)) / sum(Fraction(str(w)) for w in weights) for w in weights]
    # Each fork rounds once, by at most a half, so a source at depth d is never further than d / 2 from its share.
    bound = depth(mixed.tree) / 2
    counts: Counter[int] = Counter()
    for sample in range(300):
        number, index = mixed.locate(sample)
        assert index == counts[number]  # no gap, no repetition within a source
        counts[number] += 1
        assert all(abs(counts[k] - (sample + 1) * share) <= bound for k, share in enumerate(shares))


def test_nothing_drifts_however_far_the_run_goes() -> None:
    mixed = mixture(0.7, 0.2, 0.1)
    sample = 10**16
    places = [mixed.locate(s) for s in range(sample, sample + 20)]
    assert {number for number, _ in places} == {0, 1, 2}
    for number, index in places:
        assert abs(index - sample * (7, 2, 1)[number] // 10) <= 20


def test_a_share_in_binary_would_be_noticed() -> None:
    """0.1 as the nearest double is off by 5.6e-18: after 10^20 samples that is hundreds of them."""
    exact, binary = Fraction("0.1"), Fraction(0.1)
    assert abs(10**20 * exact - 10**20 * binary) > 100
    number, index = mixture(0.9, 0.1).locate(10**20)
    assert abs(index - 10**20 * Fraction(9 - 8 * number, 10)) <= 1


def test_rows_come_from_their_sources() -> None:
    mixed = mixture(3, 1, 2)
    rows = mixed.rows(np.arange(10, 30))
    for row, sample in enumerate(range(10, 30)):
        number, index = mixed.locate(sample)
        expected = mixed.sources[number].rows(np.array([index]))
        for name, values in expected.items():
            np.testing.assert_array_equal(rows[name][row], values[0])


def test_errors_name_the_sample_of_the_run(tmp_path: Path) -> None:
    sets: list[Source] = [Windows(write_set(tmp_path / name, numbered(70)), 10) for name in ("a", "b")]
    shard = tmp_path / "b" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-4])
    mixed = Mixture(tuple(sets), (1.0, 1.0))
    sample = next(s for s in range(100) if mixed.locate(s) == (1, 3))
    with pytest.raises(InputError, match=rf"b/shard-00000.bin: .*truncated.*sample {sample}\)"):
        mixed.rows(np.array([sample]))


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 0.0), (1.0, -1.0), (1.0, float("nan")), (1.0, float("inf"))])
def test_weights_that_cannot_be_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="weights"):
        Mixture((Synthetic(5, 4), Synthetic(5, 4)), weights)


@given(weights=WEIGHTS, data=st.data())
@settings(max_examples=20, deadline=None)
def test_after_a_change_each_source_goes_on_where_it_stood(weights: list[float], data: st.DataObject) -> None:
    changes, sample = [], 0
    for _ in range(data.draw(st.integers(1, 3))):
        sample += data.draw(st.integers(1, 60))
        others = data.draw(st.lists(st.integers(1, 9), min_size=len(weights), max_size=len(weights)))
        changes.append((sample, tuple(float(weight) for weight in others)))
    sources = mixture(*weights).sources
    mixed, plain = Mixture(sources, tuple(weights), tuple(changes)), mixture(*weights)
    counts: Counter[int] = Counter()
    for number in range(200):
        source, index = mixed.locate(number)
        assert index == counts[source]
        counts[source] += 1
        if number < changes[0][0]:
            assert (source, index) == plain.locate(number)
    last, proportions = changes[-1]
    dealt = Counter(mixed.locate(number)[0] for number in range(last, last + 1000))
    for source, weight in enumerate(proportions):
        assert abs(dealt[source] - 1000 * weight / sum(proportions)) <= len(weights)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (((5, (1.0,)),), "1 weights for 2 paths"),
        (((5, (1.0, 0.0)),), "positive"),
        (((0, (1.0, 2.0)),), "at least 1"),
        (((5, (1.0, 2.0)), (5, (2.0, 2.0))), "each above"),
    ],
)
def test_a_change_that_means_nothing_is_refused(changes: tuple[tuple[int, tuple[float, ...]], ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Mixture(mixture(1, 1).sources, (1.0, 1.0), changes)
