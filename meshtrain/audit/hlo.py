"""The text of a compiled program (XLA's HLO) as data: computations, their instructions, and who calls whom.

Only what an audit needs is understood; what is not stays text in `attributes`. Both JAX lines write this form: an
instruction is `%name = shape opcode(%operand, ...), attribute=..., metadata={...}`.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "f8e4m3fn": 8, "f8e5m2": 8, "s16": 16, "u16": 16, "f16": 16,
    "bf16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"\b(\w+)=%([\w.\-]+)")
_CALLED_LIST = re.compile(r"\b(branch_computations|called_computations|calls)=\{([^}]*)\}")


@dataclass(frozen=True)
class Array:
    """An array's dtype in XLA's spelling and its sizes, on one device."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes; of tokens and unknown dtypes none."""
        return self.size * BITS.get(self.dtype, 0) // 8


@dataclass(frozen=True)
class Instruction:
    """One line. `parts` are the arrays of each element of the outermost tuple (one element where it is no tuple)."""

    name: str
    opcode: str
    parts: tuple[tuple[Array, ...], ...]
    operands: tuple[str, ...]
    attributes: str
    root: bool = False

    @property
    def arrays(self) -> tuple[Array, ...]:
        """All arrays of the result."""
        return tuple(array for part in self.parts for array in part)

    @cached_property
    def called(self) -> dict[str, tuple[str, ...]]:
        """The computations that it names, by attribute: body, condition, calls, to_apply, branch_computations ..."""
        text = self.attributes.partition(", metadata={")[0]
        found = {key: (name,) for key, name in _CALLED.findall(text)}
        return found | {key: tuple(_NAME.findall(names)) for key, names in _CALLED_LIST.findall(text)}

    @property
    def trip_count(self) -> int | None:
        """How often a loop turns, where the compiler knows it."""
        found = self.attribute(r'known_trip_count"?:\{"?n"?:"?(\d+)')
        return int(found) if found else None

    def attribute(self, pattern: str) -> str | None:
        """The first group of a pattern in the attributes."""
        found = re.search(pattern, self.attributes)
        return found[1] if found else None


@dataclass
class Computation:
    """Instructions in the order in which the compiler has scheduled them."""

    name: str
    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Name -> instruction."""
        return {one.name: one for one in self.instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Name -> the instructions that read it."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions:
            for name in one.operands:
                found.setdefault(name, []).append(one)
        return found

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the computation's."""
        return next((one for one in self.instructions if one.root), self.instructions[-1])


@dataclass
class Module:
    """A program."""

    entry: str
    computations: dict[str, Computation]
    text: str = field(repr=False, default="")

    def turns_on_a_flag(self, one: Instruction) -> bool:
        """Whether this is a loop that turns as long as a flag is set: a branch whose arrays are changed in place."""
        if one.opcode != "while" or one.trip_count is not None:
            return False
        return all(self.computations[name].root.opcode == "get-tuple-element" for name in one.called["condition"])


def parse_module(text: str) -> Module:
    """The program of a text; ValueError where it is none."""
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is not None and line.startswith("}"):
            current = None
        elif current is not None:
            if instruction := parse_instruction(line):
                current.instructions.append(instruction)
        elif head := _HEAD.match(line):
            current = computations[head[2]] = Computation(head[2])
            entry = head[2] if head[1] else entry
    if not entry:
        raise ValueError("this is no text of a compiled program: there is no ENTRY computation")
    return Module(entry, computations, text)


def parse_instruction(line: str) -> Instruction | None:
    """The instruction of a line; None for any other line."""
    head = _LINE.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, opening, _ = rest.partition("(")
    if not opening or not re.fullmatch(r"[\w\-]+", opcode):
        return None
    close = _closing(rest, len(opcode))
    operands = tuple(_NAME.findall(rest[len(opcode) : close]))
    return Instruction(head[2], opcode, _parts(shape), operands, rest[close + 1 :], bool(head[1]))


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
    return len(text)


def _parts(shape: str) -> tuple[tuple[Array, ...], ...]:
    return tuple(arrays_of(part) for part in _elements(shape)) if shape.startswith("(") else (arrays_of(shape),)


def _elements(shape: str) -> Iterator[str]:
    """The elements of the outermost tuple."""
    depth, begin = 0, 1
    for at, letter in enumerate(shape):
        depth += (letter in "({[") - (letter in ")}]")
        if (letter == "," and depth == 1) or depth == 0:
            if shape[begin:at].strip():
                yield shape[begin:at]
            begin = at + 1


def arrays_of(shape: str) -> tuple[Array, ...]:
    """All arrays of a shape's text, in order."""
    return tuple(
        Array(dtype, tuple(int(size) for size in sizes.split(",") if size)) for dtype, sizes in _ARRAY.findall(shape)
    )
