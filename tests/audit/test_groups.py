"""Replica groups in every form that XLA prints are the same groups, and they name the axes of the layout's mesh."""

import numpy as np
import pytest

from meshtrain.audit.groups import pair_partners, pairs, partners, replica_groups

MESH = {"a": 2, "b": 4, "c": 2}
NUMBERS = np.arange(16).reshape(2, 4, 2)
OVER_B = NUMBERS.transpose(0, 2, 1).reshape(-1, 4)
OVER_AC = NUMBERS.transpose(1, 0, 2).reshape(-1, 4)


def listed(groups: np.ndarray) -> str:
    return "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in groups) + "}"


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (listed(OVER_B), OVER_B),
        ("[4,4]<=[2,4,2]T(0,2,1)", OVER_B),
        ("mesh['x'=2,'y'=4,'z'=2] {'y'}", OVER_B),
        ("mesh['a'=2,'b'=4,'c'=2] {'a','c'}", OVER_AC),
        ("mesh['x'=16] {'x':(8)2}", NUMBERS.reshape(-1, 2)),
        ("mesh['x'=16] {'x':(2)4}", OVER_B),
        ("mesh['x'=4,'y'=4], device_ids=([4,4]T(1,0)) {'y'}", np.arange(16).reshape(4, 4).T),
        ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}", np.array([[0, 2], [1, 3]])),
        ("[1,16]<=[16]", np.arange(16)[None]),
        ("{}", np.arange(16)[None]),
    ],
)
def test_forms(text: str, groups: np.ndarray) -> None:
    found = replica_groups(f", channel_id=3, replica_groups={text}, dimensions={{1}}", 16)
    assert (found == groups).all()


def test_axes_are_recovered() -> None:
    found = partners(OVER_AC, MESH)
    assert (found.axes, found.size, found.whole) == (("a", "c"), 4, True)
    found = partners(NUMBERS.reshape(-1, 16), MESH)
    assert (found.axes, found.size, found.whole) == (("a", "b", "c"), 16, True)
    half = partners(np.arange(16).reshape(2, 2, 2, 2).transpose(0, 2, 3, 1).reshape(-1, 2), MESH)
    assert (half.axes, half.size, half.whole) == (("b",), 2, False)


def test_an_unknown_form_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown form"):
        replica_groups("replica_groups=<new>", 16)


def test_pairs_name_the_axis_that_they_go_along() -> None:
    ring = [(int(row[i]), int(row[(i + 1) % 4])) for row in OVER_B for i in range(4)]
    text = ",".join(f"{{{s},{t}}}" for s, t in ring)
    found = pair_partners(pairs(f"source_target_pairs={{{text}}}"), MESH)
    assert (found.axes, found.size, found.share) == (("b",), 4, 1.0)
    first = pair_partners(pairs("source_target_pairs={{0,8},{1,1}}"), MESH)
    assert (first.axes, first.share) == (("a",), 1 / 16)
    assert pair_partners(pairs("source_target_pairs={}"), MESH).share == 0
