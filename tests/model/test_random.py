"""Threefry against its authors' known answers, and the normal numbers made of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.model.random import normal, threefry, words

ONES = 0xFFFFFFFF
# Random123's kat_vectors, threefry2x32 with 20 rounds: counter, key, expected words.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers(counter: tuple[int, int], key: tuple[int, int], expected: tuple[int, int]) -> None:
    found = threefry((jnp.uint32(key[0]), jnp.uint32(key[1])), *counter)
    assert tuple(int(word) for word in found) == expected


draw = jax.jit(normal, static_argnums=1)


def test_normal_numbers_look_normal() -> None:
    """Of n draws: mean, deviation, skewness and kurtosis within 5 standard errors, and no two rows related."""
    x = np.asarray(draw(words(jax.random.key(0)), (256, 32, 32)), np.float64).reshape(256, -1)
    n = x.size
    assert abs(x.mean()) < 5 / n**0.5
    assert abs(x.std() - 1) < 5 / (2 * n) ** 0.5
    assert abs((x**3).mean()) < 5 * (15 / n) ** 0.5
    assert abs((x**4).mean() - 3) < 5 * (96 / n) ** 0.5
    assert 4 < np.abs(x).max() < 5.5
    related = np.corrcoef(x) - np.eye(256)
    assert np.abs(related).max() < 6 / 1024**0.5


def test_an_element_depends_on_its_row_and_its_place_in_it() -> None:
    key = words(jax.random.key(3))
    np.testing.assert_array_equal(draw(key, (5, 6, 7))[:2], draw(key, (2, 6, 7)))
    np.testing.assert_array_equal(draw(key, (5, 6, 7)).reshape(5, 42), draw(key, (5, 42)))
    assert (draw(key, (2, 64)) != draw(words(jax.random.key(4)), (2, 64))).all()


def test_no_number_comes_twice_where_a_row_has_more_than_the_low_word_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of 384 experts of 7,168 x 2,048 has: the first half of its experts would come again in the others."""
    key, shape = words(jax.random.key(0)), (3, 9, 6)
    monkeypatch.setattr("meshtrain.model.random.NUM_LOW", 16)
    x = np.asarray(normal(key, shape))
    assert len(np.unique(x)) == x.size
    np.testing.assert_array_equal(normal(key, (2, 9, 6)), x[:2])
    monkeypatch.undo()
    np.testing.assert_array_equal(normal(key, shape)[:, :2], x[:, :2])
