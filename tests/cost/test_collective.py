"""Bytes on the wire are those of ring algorithms: an all-reduce is a reduce-scatter and an all-gather."""

import pytest

from meshtrain.cost.collective import Collective, wire_factor


def test_wire_bytes() -> None:
    sent = Collective("all_reduce", ("x",), 8, 1000, 3, "forward", "", "").wire_bytes
    assert sent == 2 * 7 / 8 * 1000 * 3
    assert sent == 3 * 1000 * (wire_factor("reduce_scatter", 8) + wire_factor("all_gather", 8))
    assert Collective("permute", ("x",), 4, 1000, 1, "forward", "", "").wire_bytes == 1000
    assert Collective("all_gather", ("x",), 1, 1000, 1, "forward", "", "").wire_bytes == 0


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        Collective("broadcast", ("x",), 2, 1, 1, "forward", "", "")
