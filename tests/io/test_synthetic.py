"""Synthetic rows: a pure function of (seed, sample), evenly spread ids."""

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.synthetic import Synthetic


def test_rows_do_not_depend_on_their_company() -> None:
    source = Synthetic(vocab=300, length=9, seed=4)
    together = source.rows(np.arange(6))
    alone = source.rows(np.array([4]))
    for name in together:
        np.testing.assert_array_equal(together[name][4:5], alone[name])
    assert not np.array_equal(together["tokens"], Synthetic(300, 9, 5).rows(np.arange(6))["tokens"])


def test_labels_are_the_next_tokens() -> None:
    rows = Synthetic(vocab=300, length=9).rows(np.arange(3))
    np.testing.assert_array_equal(rows["tokens"][:, 1:], rows["labels"][:, :-1])
    np.testing.assert_array_equal(rows["positions"], np.tile(np.arange(9), (3, 1)))
    assert (rows["segments"] == 1).all()
    assert {values.dtype for values in rows.values()} == {np.dtype(np.int32)}


def test_ids_are_uniform() -> None:
    ids = Synthetic(vocab=128, length=512, seed=1).rows(np.arange(100))["tokens"]
    counts = np.bincount(ids.ravel(), minlength=128)
    # chi-square with 127 degrees of freedom: 220 is exceeded with chance 6e-7
    assert np.sum((counts - 400) ** 2 / 400) < 220
    assert len(counts) == 128


def test_a_vocabulary_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="vocab=0"):
        Synthetic(0, 4)
