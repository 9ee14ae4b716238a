"""How rows are dealt out to the shards of the length: by hand, as a permutation, and what does not divide."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.layout.order import order_axes, row_order, token_of
from tests.layout.arrays import placed

RING: dict[str, Any] = dict(rules=dict(length="c"), activations=dict(stream="c"), attention="ring")
USP: dict[str, Any] = dict(
    mesh=dict(r=4, s=2), rules=dict(length=("r", "s")), activations=dict(stream=("r", "s")), attention="usp"
)


def on(num: int, **declared: Any) -> Placement:
    return placed(num, **{"mesh": dict(c=num), **RING, **declared})


def test_zigzag_by_hand() -> None:
    """4 shards of 2 chunks of 1 token: device i has tokens i and 7 - i."""
    order = row_order(on(4, order="zigzag"), 8)
    assert order is not None
    assert order.tolist() == [0, 7, 1, 6, 2, 5, 3, 4]


def test_zigzag_keeps_runs_of_a_chunk() -> None:
    order = row_order(on(2, order="zigzag"), 12)
    assert order is not None
    assert order.tolist() == [0, 1, 2, 9, 10, 11, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_it_is_a_permutation_and_the_same_on_devices(num: int) -> None:
    place = on(num, order="zigzag")
    order = row_order(place, num * 6)
    assert order is not None
    np.testing.assert_array_equal(np.sort(order), np.arange(num * 6))
    np.testing.assert_array_equal(token_of(jnp.arange(num * 6), place, num * 6), order)


def test_rows_that_stay_as_they_are() -> None:
    assert row_order(on(4), 8) is None
    assert row_order(on(1, order="zigzag"), 8) is None
    assert row_order(on(4, order="zigzag", attention="ulysses"), 12) is None  # whole rows come together
    assert row_order(placed(8, mesh=dict(x=-1)), 7) is None


def test_shards_that_swap_heads_are_one_to_the_order() -> None:
    place = placed(8, **USP, order="zigzag")
    assert order_axes(place) == ("r",)
    order = row_order(place, 16)
    assert order is not None
    assert order.tolist() == [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]


def test_a_small_mesh_of_a_larger_layout() -> None:
    """The last axis of the rule swaps even where another one is left with a single device."""
    small = dict(USP, mesh=dict(r=1, s=2))
    assert order_axes(placed(2, **small)) == ()
    assert order_axes(placed(2, **dict(USP, mesh=dict(r=2, s=1)))) == ("r",)


def test_a_length_that_does_not_divide() -> None:
    with pytest.raises(InputError) as caught:
        row_order(on(4, order="zigzag"), 20)
    assert str(caught.value) == (
        "data.length: 20 tokens do not divide over c=4 (rules.length) into 4 pairs of chunks (order='zigzag'), a"
        " multiple of 8. data.length=16 or 24 would work."
    )
