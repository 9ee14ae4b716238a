"""What a layout can get wrong about `attention`, `order`, `length` and `stream`: each with a way out."""

from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Layout
from meshtrain.layout.exchange import exchange_axes
from tests.layout.arrays import findings, placed

GOOD: dict[str, Any] = dict(
    mesh=dict(data=2, context=4), rules=dict(batch="data", length="context"), activations=dict(stream="context"),
    attention="ring",
)  # fmt: skip


def said(severity: str, num_devices: int = 8, **declared: Any) -> list[str]:
    return [str(f) for f in findings(num_devices, **declared) if f.severity == severity]


@pytest.mark.parametrize("attention", ["ring", "gather", "ulysses"])
def test_a_good_layout_has_nothing_to_say(attention: str) -> None:
    declared = dict(GOOD, attention=attention)
    assert said("error", **declared) + said("warning", **declared) == []


def test_words() -> None:
    for key, wrong, right in (("attention", "rings", "ring"), ("order", "zig-zag", "zigzag")):
        with pytest.raises(InputError, match=f"{key}: '{wrong}' is not one of .*Did you mean '{right}'"):
            Layout.parse({**GOOD, key: wrong})


def test_usp_takes_two_axes() -> None:
    with pytest.raises(InputError, match=r"the row names context\. Write rules\.length=\(RING, SWAP\)"):
        Layout.parse(dict(GOOD, attention="usp"))
    place = placed(8, mesh=dict(a=2, b=4), rules=dict(length=("a", "b")), attention="usp")
    assert exchange_axes(place) == (("a",), ("b",))


def test_a_cut_length_needs_an_exchange() -> None:
    (text,) = said("error", **dict(GOOD, attention="local"))
    assert text.startswith("attention: 'local' reaches only the keys on its own device")
    assert "context=4" in text
    assert "attention='ring'" in text


@pytest.mark.parametrize(("key", "value"), [("attention", "ring"), ("order", "zigzag")])
def test_words_without_a_cut_length(key: str, value: str) -> None:
    declared: dict[str, Any] = {"mesh": dict(data=8), "rules": dict(batch="data"), key: value}
    (text,) = said("warning", **declared)
    assert text.startswith(f"{key}: '{value}' is for rows that are cut along their length, and no row cuts `length`.")
    default = {"attention": "local", "order": "contiguous"}[key]
    assert text.endswith(f"Write rules.length=AXIS (and activations.stream=AXIS), or {key}='{default}'.")


def test_the_stream_should_be_cut_too() -> None:
    (text,) = said("warning", **dict(GOOD, activations={}))
    assert text.startswith("rules.length: attention and MLP have their positions cut over context=4, but the residual")
    assert text.endswith('Write activations.stream="context".')
    tensor: dict[str, Any] = dict(
        mesh=dict(context=4, tensor=2), rules=dict(length="context", heads="tensor", kv_heads="tensor")
    )
    for stream in ("tensor", ("tensor", "context")):
        (text,) = said("warning", attention="ring", activations=dict(stream=stream), **tensor)
        assert text.endswith('Write activations.stream=("context", "tensor").')
    assert said("warning", attention="ring", activations=dict(stream=("context", "tensor")), **tensor) == []


def test_zigzag_takes_pairs_of_chunks() -> None:
    """Rows of 32 tokens on 32 shards divide, but not into 64 chunks."""
    declared = dict(GOOD, mesh=dict(data=1, context=32), order="zigzag")
    (text,) = said("error", num_devices=32, **declared)
    assert text.startswith("data.length: 32 tokens do not divide over context=32")
    assert "data.length=64 would work" in text
    assert said("error", num_devices=32, **dict(declared, order="contiguous")) == []


def test_zigzag_of_whole_rows() -> None:
    texts = said("note", **dict(GOOD, attention="ulysses", order="zigzag"))
    assert any("the zigzag changes nothing" in text for text in texts)


def test_ulysses_shares_out_query_heads() -> None:
    """8 heads on 16 devices; and on 4 devices where a tensor axis has left 2 heads to each."""
    (text,) = said("error", num_devices=16, **dict(GOOD, mesh=dict(data=1, context=16), attention="ulysses"))
    assert text.startswith("attention: 'ulysses' shares the 8 query heads of a device out over context=16")
    assert "8 devices would work, or attention='ring'" in text
    tensor = dict(
        mesh=dict(context=4, tensor=4), attention="ulysses", activations=dict(stream=("context", "tensor")),
        rules=dict(length="context", heads="tensor", kv_heads="tensor"),
    )  # fmt: skip
    (text,) = said("error", num_devices=16, **tensor)
    assert "the 2 query heads of a device" in text
    assert "2 devices would work" in text


def test_axes_of_size_one_are_no_problem() -> None:
    assert said("error", num_devices=2, **dict(GOOD, mesh=dict(data=2, context=1), attention="local")) == []
