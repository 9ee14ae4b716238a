"""The shuffle: a permutation of every size, another in each epoch, the same numbers for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtrain.io import permutation
from meshtrain.io.permutation import keyed, permuted


def order(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return permuted(np.arange(size), size, seed, np.full(size, epoch))


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    np.testing.assert_array_equal(np.sort(order(size, seed, epoch)), np.arange(size))


def test_folding_instead_of_walking_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = permutation._feistel
    monkeypatch.setattr(permutation, "_feistel", lambda x, key, bits: real(x, key, bits) % np.uint64(100))
    assert len(set(order(100).tolist())) < 100


@given(size=st.integers(20, 1000), seed=st.integers(0, 2**32), epoch=st.integers(0, 100))
@settings(max_examples=40, deadline=None)
def test_epochs_and_seeds_differ(size: int, seed: int, epoch: int) -> None:
    here = order(size, seed, epoch)
    for other in (order(size, seed, epoch + 1), order(size, seed + 1, epoch), np.arange(size)):
        assert np.mean(here == other) < 0.4  # 1 / size is expected; 20 numbers agree at 8 places with chance 2e-6


def test_one_by_one_is_as_all_at_once() -> None:
    epochs = np.array([0, 1, 0, 5, 1])
    index = np.array([3, 3, 0, 7, 9])
    together = permuted(index, 11, 3, epochs)
    alone = [int(permuted(index[i : i + 1], 11, 3, epochs[i : i + 1])[0]) for i in range(5)]
    assert together.tolist() == alone


def test_places_and_neighbours_look_random() -> None:
    size = 4096
    x = order(size, 9)
    # Every sixteenth of the order draws evenly from the numbers: chi-square of a 16 x 16 table, 225 degrees of freedom;
    # 330 is exceeded with chance 5e-6.
    table = np.histogram2d(np.arange(size), x, bins=16)[0]
    assert np.sum((table - 16) ** 2 / 16) < 330
    assert np.mean(np.abs(np.diff(x)) == 1) < 0.005  # 2 / size is expected


def test_a_large_set_needs_no_memory() -> None:
    size = 10**15 + 7
    index = np.arange(20_000) + 999_000_000_000
    x = permuted(index, size, 1, np.zeros(20_000, np.int64))
    assert len(set(x.tolist())) == 20_000
    assert x.min() >= 0
    assert x.max() < size


def test_the_numbers_never_change() -> None:
    """A change here would reorder the data of every run that is resumed."""
    assert order(10, 0, 0).tolist() == [3, 5, 8, 9, 7, 6, 4, 1, 2, 0]
    assert order(10, 7, 3).tolist() == [9, 2, 8, 5, 6, 7, 1, 0, 4, 3]
    assert keyed(1, 2, 3).tolist() == [13970812694498109058]
