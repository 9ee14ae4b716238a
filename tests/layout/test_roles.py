"""What a layout is called in the words of the field."""

from typing import Any

import pytest

from meshtrain.layout.roles import words
from meshtrain.layout.table import stage_of
from tests.layout.arrays import MESH, TENSOR, placed

ONE, BATCH, EMBED = dict(data=8), dict(batch="data"), dict(embed="data")
SAME = "that all compute the same"


@pytest.mark.parametrize(
    ("declared", "expected", "stage"),
    [
        (dict(mesh=ONE, rules=BATCH), "data parallelism over data", 0),
        (dict(mesh=ONE, rules=BATCH, optimizer=EMBED), "ZeRO-1 over data", 1),
        (dict(mesh=ONE, rules=BATCH, grads=EMBED), "ZeRO-2 over data", 2),
        (dict(mesh=ONE, rules=BATCH, params=EMBED), "ZeRO-3 over data", 3),
        (dict(mesh=ONE, rules=BATCH, params=EMBED, grads=dict(embed=None)), "ZeRO-3 over data", 3),
        (
            dict(mesh=dict(a=2, b=4), rules=dict(batch=("a", "b")), params=dict(embed="b")),
            "ZeRO-3 over b with data parallelism over a",
            3,
        ),
        (
            dict(mesh=MESH, rules=TENSOR, grads=EMBED),
            "ZeRO-2 over data with Megatron tensor parallelism over tensor",
            2,
        ),
        (
            dict(mesh=dict(tensor=4, data=2), rules=TENSOR, activations=dict(stream="tensor")),
            "data parallelism over data with Megatron tensor and sequence parallelism over tensor",
            0,
        ),
        (
            dict(mesh=MESH, rules=dict(batch="data", mlp="tensor")),
            "data parallelism over data with tensor parallelism of the MLP over tensor",
            0,
        ),
        (dict(mesh=ONE), f"8 copies over data {SAME}", 0),
        (dict(mesh=ONE, params=EMBED), "ZeRO-3 storage (the batch is not cut over it) over data", 3),
        (dict(mesh=MESH, rules=BATCH), f"data parallelism over data with 4 copies over tensor {SAME}", 0),
    ],
)
def test_words(declared: dict[str, Any], expected: str, stage: int) -> None:
    assert words(placed(**declared)) == expected
    assert stage_of(placed(**declared)) == stage


def test_one_device() -> None:
    assert words(placed(1, mesh=dict(data=-1), rules=BATCH)) == "one device: nothing is cut"


def test_names_are_free() -> None:
    renamed = dict(batch="rows", heads="columns", kv_heads="columns", mlp="columns", vocab="columns")
    here = placed(mesh=dict(rows=2, columns=4), rules=renamed)
    assert words(here) == "data parallelism over rows with Megatron tensor parallelism over columns"
