"""Units cannot be mixed, left out or mistaken: bits, bytes, one way, both ways, per GPU, per node."""

import pytest

from meshtrain.cost.quantity import (
    GB,
    MB,
    ByteRate,
    Bytes,
    FlopRate,
    GB_per_s,
    Gbit_per_s,
    GiB,
    Seconds,
    TB_per_s,
    TFLOP_per_s,
    microseconds,
    read_bytes,
    read_failure_rate,
    read_flop_rate,
    read_link_rate,
    read_memory_rate,
    read_price,
    read_seconds,
    seconds,
)
from meshtrain.errors import InputError


def test_words_name_their_unit() -> None:
    assert Gbit_per_s(400) == GB_per_s(50) == ByteRate(50e9)
    assert GB(80) == Bytes(80e9)
    assert GiB(80) == Bytes(80 * 2**30)
    assert MB(1000) == GB(1)
    assert TB_per_s(3.35) == ByteRate(3.35e12)
    assert TFLOP_per_s(989) == FlopRate(989e12)
    assert microseconds(5) < seconds(1)


def test_kinds_are_kept() -> None:
    """The checker of types refuses these too: each ignored line is one that it would not let pass."""
    assert GB(9) / GB_per_s(450) == Seconds(0.02)
    assert GB(9) / GB(3) == 3
    assert GB(9) / 3 == GB(3)
    assert 2 * GB(9) == GB(9) * 2 == GB(9) + GB(9) == GB(27) - GB(9)
    with pytest.raises(TypeError):
        GB(1) + GB_per_s(1)  # type: ignore[operator]
    with pytest.raises(TypeError):
        Gbit_per_s(1) + GB(1)  # type: ignore[operator]
    with pytest.raises(TypeError):
        GB(1) + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        GB(1) - seconds(1)  # type: ignore[operator]
    with pytest.raises(TypeError):
        GB(1) * GB(1)  # type: ignore[operator]
    with pytest.raises(TypeError):
        GB_per_s(1) / GB(1)
    with pytest.raises(TypeError):
        _ = GB(1) < GB_per_s(2)  # type: ignore[operator]
    with pytest.raises(InputError, match="not a finite number"):
        GB("80")  # type: ignore[arg-type]


def test_a_link_says_direction_and_owner() -> None:
    for text in ("450 GB/s one way per GPU", "900 GB/s both ways added per GPU", "3600 Gb/s one way per GPU"):
        assert read_link_rate(text, "fast.rate", 8) == GB_per_s(450)
    assert read_link_rate("3200 Gb/s one way per node", "network.rate", 8) == Gbit_per_s(400)
    assert read_link_rate("100 GB/s one way per node", "network.rate", 16) == GB_per_s(6.25)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (450, "a plain number"),
        (450e9, "a plain number"),
        ("450", "direction and owner"),
        ("450 GB/s", "direction and owner"),
        ("450 GB/s one way", "direction and owner"),
        ("450 GB/s per GPU", "direction and owner"),
        ("450GB/s one way per GPU", "direction and owner"),
        ("450 GB one way per GPU", "GB/s are bytes, Gb/s are bits"),
        ("450 Gbps one way per GPU", "GB/s are bytes, Gb/s are bits"),
        ("450 gb/s one way per GPU", "GB/s are bytes, Gb/s are bits"),
        ("0 GB/s one way per GPU", "above 0"),
        (None, "direction and owner"),
    ],
)
def test_a_link_in_another_form_is_refused(value: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as raised:
        read_link_rate(value, "network.rate", 8)
    assert str(raised.value).startswith("network.rate: ")


def test_other_quantities() -> None:
    assert read_bytes("80 GiB", "memory") == GiB(80)
    assert read_memory_rate("3.35 TB/s", "memory_rate") == TB_per_s(3.35)
    assert read_flop_rate("989 TFLOP/s", "peak.bfloat16") == TFLOP_per_s(989)
    assert read_seconds("5 us", "fast.latency") == microseconds(5)
    assert read_price("2.50 USD per GPU-hour", "price") == 2.5
    assert read_failure_rate("419 failures in 54 days on 16384 GPUs", "failures") == pytest.approx(
        419 / (54 * 24 * 16384)
    )


@pytest.mark.parametrize(
    ("read", "value", "says"),
    [
        (read_bytes, 80e9, "a plain number, has no unit.*memory='80 GB'"),
        (read_bytes, True, "has no unit"),
        (read_bytes, "80", "not a number, a space and a unit"),
        (read_bytes, "80 Gb", "b is bits"),
        (read_bytes, "80 GB/s", "not one of"),
        (read_memory_rate, "3.35 TB", "not one of"),
        (read_memory_rate, "400 Gb/s", "b is bits"),
        (read_flop_rate, "989 TFLOPS", "not one of"),
        (read_seconds, 5e-6, "has no unit"),
        (read_price, 2.5, "a plain number, is no price"),
        (read_failure_rate, 0.1, "a plain number, is no failure rate"),
        (read_failure_rate, "419 failures in 54 days on 0 GPUs", "no failure rate"),
    ],
)
def test_what_has_no_unit_is_refused(read, value: object, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        read(value, "memory")
