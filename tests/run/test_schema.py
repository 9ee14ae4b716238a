"""Case G1: one value in whatever form loses nothing, by file and by flag alike; the rest is an error with a way out."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.run import schema


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    name: Literal["adamw", "none"] = "adamw"

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise InputError(f"inner.rate: {self.rate} must be above 0.")


@dataclass(frozen=True)
class Outer:
    count: int
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.5
    flag: bool = False
    text: str = "a"
    maybe: int | None = 3
    names: tuple[str, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    free: dict[str, int] = field(default_factory=dict)
    section: Inner | None = None
    anything: Any = None


SAME: dict[str, list[tuple[Any, list[Any]]]] = {
    "rate": [
        (0.0001, [1e-4, "1e-4", "1E-4", ".0001", "0.0001", "+1e-4"]),
        (4e7, [4e07, "4e07", "40000000", 40000000, "4e+7", "40_000_000"]),
        (10.0, [10, 10.0, "10", "10.0", np.float32(10), np.int64(10)]),
        (float("inf"), ["inf", float("inf")]),
    ],
    "count": [
        (10, [10, 10.0, "10", "10.0", "1e1", np.int32(10), np.float64(10.0), np.array(10)]),
        (4 * 10**7, [4e07, "4e07", "4E7"]),
        (-1, ["-1", -1.0]),
    ],
    "flag": [(True, [True, "true", "True", np.bool_(True)]), (False, [False, "false"])],
    "maybe": [(None, [None, "none", "None", "null"]), (4, ["4", 4.0, "4e0"])],
    "names": [(("a", "b"), ["a,b", ("a", "b"), ["a", "b"], "('a', 'b')"]), ((), ["", []]), (("a",), ["a"])],
    "pair": [((3, 0.5), [(3.0, ".5"), "3,0.5", [3, 0.5]])],
    "free": [({"x": 2}, [{"x": 2.0}, "{'x': 2}", {"x": "2"}])],
    "section": [(None, [None, "none"]), (Inner(0.2), [{"rate": "0.2"}, Inner(0.2), "{'rate': 0.2}"])],
    "anything": [(None, [None, "None"]), (4, ["4"]), ("a b", ["a b"]), (("a", 1), ["('a', 1)"])],
    "text": [("1e-4", ["1e-4"]), ("none", ["none"])],
}


@pytest.mark.parametrize(
    ("key", "value", "form"),
    [(key, value, form) for key, rows in SAME.items() for value, forms in rows for form in forms],
)
def test_forms_of_one_value(key: str, value: Any, form: Any) -> None:
    got = getattr(schema.build(Outer, {"count": 1, key: form}, "config"), key)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("count", 10.5, ["config.count=10.5 (float)", "an integer", "fraction", "config.count=100"]),
        ("count", "10.5", ["config.count='10.5' (str)", "an integer"]),
        ("count", "1e-4", ["fraction"]),
        ("count", True, ["config.count=True (bool)", "an integer"]),
        ("count", None, ["an integer"]),
        ("count", "ten", ["config.count='ten'"]),
        ("count", "inf", ["not finite"]),
        ("count", "1e999999999", ["config.count='1e999999999'", "the largest is"]),
        ("count", 2**64, ["the largest is"]),
        ("count", np.float64(10.5), ["an integer", "fraction"]),
        ("count", np.array([10]), ["an integer"]),
        ("rate", "fast", ["config.rate='fast'", "a number", "0.001"]),
        ("rate", "nan", ["not a number"]),
        ("rate", True, ["a number"]),
        ("rate", 2**53 + 1, ["exactly"]),
        ("flag", 1, ["true or false"]),
        ("flag", "yes", ["true or false"]),
        ("text", 3, ["a text"]),
        ("maybe", "x", ["an integer or none"]),
        ("pair", "1", ["2 values"]),
        ("names", 3, ["a sequence"]),
        ("names", ("a", 3), ["config.names", "a text"]),
        ("free", {"x": 0.5}, ["config.free.x=0.5", "an integer"]),
        ("free", 3, ["names with values"]),
        ("inner", 3, ["a section of keys"]),
        ("cuont", 3, ["config.cuont", "no such key", "'config.count'"]),
        ("nonsense", 3, ["config.nonsense", "Valid names: count, inner"]),
        ("name", "x", ["'config.inner.name'"]),
        ("inner", {"rat": 1}, ["config.inner.rat", "'config.inner.rate'"]),
        ("inner", {"name": "adam"}, ["config.inner.name='adam'", "'adamw', 'none'", "Did you mean 'adamw'?"]),
        ("inner", {"rate": 0}, ["config.inner.rate: 0.0 must be above 0."]),
        ("section", {"rate": 0}, ["config.section: inner.rate: 0.0 must be above 0."]),
    ],
)
def test_what_loses_information_is_an_error(key: str, value: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        schema.build(Outer, {"count": 1, key: value}, "config")
    for word in words:
        assert word in str(error.value)


def test_a_key_without_default_must_be_given() -> None:
    with pytest.raises(InputError, match=r"config\.count must be given: an integer, for example config\.count=100"):
        schema.build(Outer, {}, "config")


def test_a_literal_named_none_is_not_nothing() -> None:
    @dataclass(frozen=True)
    class Choice:
        kind: Literal["none", "full"] | None = "full"

    assert schema.build(Choice, {"kind": "none"}, "c").kind == "none"
    assert schema.build(Choice, {"kind": None}, "c").kind is None


def test_defaults_are_those_of_the_dataclass() -> None:
    assert schema.build(Outer, {"count": 2}, "config") == Outer(2)
    listed = {key: default for key, _, default in schema.leaves(Outer, "config")}
    assert listed["config.count"] == "(must be given)"
    assert listed["config.inner.rate"] == "0.1"
    assert len([key for key in listed if key.count(".") == 1]) == len(dataclasses.fields(Outer)) - 2
