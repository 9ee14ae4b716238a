"""Quantities that carry their unit: bytes, bytes/s one way, FLOP/s, seconds. What is no number of its kind is refused.

    GB_per_s(450) == Gbit_per_s(3600)      GB(80) / GB_per_s(450) is in Seconds      GB(80) + GB_per_s(1): TypeError

Config files write them as text, in one form each; what is not in that form is refused with the form that is right:

    memory "80 GB"     its speed "3.35 TB/s"     peak "989 TFLOP/s"     latency "5 us"
    a link "450 GB/s one way per GPU", "900 GB/s both ways added per GPU", "3200 Gb/s one way per node"

b is bits, B is bytes; k, M, G, T are powers of 1000 and Ki, Mi, Gi, Ti of 1024.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar, overload

from meshtrain.errors import InputError


@dataclass(frozen=True, order=True)
class Quantity:
    """A finite number of one unit. Only its own kind is added or compared (TypeError); a plain number scales it."""

    value: float

    def __post_init__(self) -> None:
        if not _is_number(self.value) or not math.isfinite(self.value):
            raise InputError(f"{type(self).__name__}: {self.value!r} is not a finite number.")

    def __add__(self, other: Self) -> Self:
        return type(self)(self.value + other.value) if type(other) is type(self) else NotImplemented

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.value - other.value) if type(other) is type(self) else NotImplemented

    def __mul__(self, factor: float) -> Self:
        return type(self)(self.value * factor) if _is_number(factor) else NotImplemented

    __rmul__ = __mul__

    @overload
    def __truediv__(self, other: float) -> Self: ...
    @overload
    def __truediv__(self, other: "Quantity") -> "Quantity | float": ...
    def __truediv__(self, other: "Quantity | float") -> "Quantity | float":
        """A quantity by a number is of its kind, by its own kind a number, by its rate a time."""
        if _is_number(other):
            return type(self)(self.value / other)  # type: ignore[operator]
        if type(other) is type(self):
            return self.value / other.value
        if (type(self), type(other)) in ((Bytes, ByteRate), (Flops, FlopRate)):
            return Seconds(self.value / other.value)  # type: ignore[union-attr]
        return NotImplemented


class Bytes(Quantity):
    """Bytes."""


class ByteRate(Quantity):
    """Bytes per second: of a link one way, for one device; of a memory reads and writes together."""


class Flops(Quantity):
    """Floating-point operations; a multiply-add is two."""


class FlopRate(Quantity):
    """Floating-point operations per second, of dense products."""


class Seconds(Quantity):
    """Seconds."""


Kind = TypeVar("Kind", bound=Quantity)
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
BYTE_UNITS = {f"{prefix}B": factor for prefix, factor in (PREFIXES | BINARY).items()}
RATE_UNITS = {f"{unit}/s": factor for unit, factor in BYTE_UNITS.items()}
BIT_RATE_UNITS = {f"{prefix}b/s": factor / 8 for prefix, factor in PREFIXES.items()}
FLOP_UNITS = {f"{prefix}FLOP/s": factor for prefix, factor in PREFIXES.items()}
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _word(kind: type[Kind], factor: float) -> Callable[[float], Kind]:
    def made(number: float) -> Kind:
        return kind(number * factor if _is_number(number) else number)

    return made


# The words for code; a word's number is in the unit that it names.
MB, GB, GiB = (_word(Bytes, BYTE_UNITS[unit]) for unit in ("MB", "GB", "GiB"))
GB_per_s, TB_per_s = (_word(ByteRate, RATE_UNITS[unit]) for unit in ("GB/s", "TB/s"))
Gbit_per_s = _word(ByteRate, BIT_RATE_UNITS["Gb/s"])
TFLOP_per_s = _word(FlopRate, FLOP_UNITS["TFLOP/s"])
microseconds, seconds = _word(Seconds, TIME_UNITS["us"]), _word(Seconds, TIME_UNITS["s"])

NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
LINK = re.compile(rf"(?P<number>{NUMBER}) (?P<unit>\S+) (?P<ways>one way|both ways added) per (?P<owner>GPU|node)")
FAILURES = re.compile(rf"(?P<count>{NUMBER}) failures in (?P<time>{NUMBER}) (?P<unit>days|hours) on (?P<gpus>\d+) GPUs")
PRICE = re.compile(rf"(?P<number>{NUMBER}) USD per GPU-hour")
HOURS = {"days": 24.0, "hours": 1.0}


def read_bytes(value: Any, key: str) -> Bytes:
    """`"80 GB"` as Bytes. InputError, with the form that is right, for anything else. `key`: the config line."""
    return _read(value, key, Bytes, BYTE_UNITS, "80 GB")


def read_memory_rate(value: Any, key: str) -> ByteRate:
    """`"3.35 TB/s"` as a rate of reads and writes together; bits are refused."""
    return _read(value, key, ByteRate, RATE_UNITS, "3.35 TB/s")


def read_flop_rate(value: Any, key: str) -> FlopRate:
    """`"989 TFLOP/s"`: of dense products."""
    return _read(value, key, FlopRate, FLOP_UNITS, "989 TFLOP/s")


def read_seconds(value: Any, key: str) -> Seconds:
    """`"5 us"`."""
    return _read(value, key, Seconds, TIME_UNITS, "5 us")


def read_link_rate(value: Any, key: str, gpus_per_node: int) -> ByteRate:
    """`"450 GB/s one way per GPU"` as bytes/s one way of one GPU; a node's figure is shared out among its GPUs."""
    example = "450 GB/s one way per GPU"
    forms = (
        f"write number, unit, direction and owner, for example {key}={example!r}; '900 GB/s both ways added per GPU'"
    )
    forms += " is the same, and '3200 Gb/s one way per node' is shared out among the node's GPUs."
    match = LINK.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f"{key}: {value!r}{_plain_number(value)} is not the speed of a link: {forms}")
    units = RATE_UNITS | BIT_RATE_UNITS
    if match["unit"] not in units:
        raise InputError(
            f"{key}: {value!r}: {match['unit']!r} is not a unit of speed: GB/s are bytes, Gb/s are bits ({forms})"
        )
    rate = _positive(match["number"], value, key) * units[match["unit"]]
    rate /= 2 if match["ways"] == "both ways added" else 1
    return ByteRate(rate / (gpus_per_node if match["owner"] == "node" else 1))


def read_failure_rate(value: Any, key: str) -> float:
    """`"419 failures in 54 days on 16384 GPUs"` as failures per GPU and hour."""
    match = FAILURES.fullmatch(value) if isinstance(value, str) else None
    if match is None or not int(match["gpus"]):
        raise InputError(
            f"{key}: {value!r}{_plain_number(value)} is no failure rate: write what was seen, for example"
            f" {key}='419 failures in 54 days on 16384 GPUs'."
        )
    hours = _positive(match["time"], value, key) * HOURS[match["unit"]] * int(match["gpus"])
    return _positive(match["count"], value, key) / hours


def read_price(value: Any, key: str) -> float:
    """`"2.50 USD per GPU-hour"` as USD per GPU and hour."""
    match = PRICE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        form = f"write {key}='2.50 USD per GPU-hour'."
        raise InputError(f"{key}: {value!r}{_plain_number(value)} is no price: {form}")
    return _positive(match["number"], value, key)


def _read(value: Any, key: str, kind: type[Kind], units: dict[str, float], example: str) -> Kind:
    if not isinstance(value, str):
        raise InputError(f"{key}: {value!r}{_plain_number(value)} has no unit: write, for example, {key}={example!r}.")
    match = re.fullmatch(rf"({NUMBER}) (\S+)", value)
    if match is None:
        raise InputError(f"{key}: {value!r} is not a number, a space and a unit, such as {key}={example!r}.")
    number, unit = match.groups()
    if unit not in units:
        bits = " b is bits, and this is in bytes." if unit.replace("b", "B") in units and "b" in unit else ""
        raise InputError(f"{key}: {value!r}: {unit!r} is not one of {', '.join(units)}.{bits} {key}={example!r}.")
    return kind(_positive(number, value, key) * units[unit])


def _positive(number: str, value: str, key: str) -> float:
    if not 0 < float(number) < math.inf:
        raise InputError(f"{key}: {value!r}: the number must be above 0 and finite.")
    return float(number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain_number(value: object) -> str:
    return ", a plain number," if _is_number(value) else ""
