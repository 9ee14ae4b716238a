"""Slurm's short forms: lists of nodes (`n[1-3,07],m5`) and of counts (`8(x2),4`). They may be short for any number of
nodes, so nothing here takes the time or the room of writing all of them out.
"""

import re
from collections.abc import Iterator, Sequence

from meshtrain.errors import InputError
from meshtrain.run.digits import read_digits, shown

_PART = re.compile(r"\[([^\[\]]*)\]")
Choices = Sequence[tuple[int, range]]  # (digits, numbers), ...; or what the name says itself


def expand_nodes(text: str) -> Iterator[str]:
    """`rack[1-2]n[08-10],m5` -> rack1n08 rack1n09 rack1n10 rack2n08 ... m5, in Slurm's order, one by one.

    InputError, at once, if any of it is wrong.
    """
    patterns: list[list[str | Choices]] = []
    for item in _split(text):
        pieces = _PART.split(item)  # literal, range, literal, range, ..., literal
        if any(mark in piece for piece in pieces[::2] for mark in "[]"):
            raise InputError(f"the node list {shown(text)} cannot be read: its brackets do not match.")
        patterns.append([piece if i % 2 == 0 else _ranges(piece, text) for i, piece in enumerate(pieces)])
    if not patterns:
        raise InputError(f"the node list {shown(text)} cannot be read: it names no node.")
    return (name for pattern in patterns for name in _names(pattern))


def tasks_of_node(text: str, node: int) -> int | None:
    """`8(x2),4` -> 8 for the nodes 0 and 1, 4 for node 2, None for others. InputError if malformed."""
    found: int | None = None
    first = 0
    for item in text.split(","):
        parts = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        count, times = (read_digits(part) for part in parts.groups("1")) if parts else (None, None)
        if count is None or times is None:
            raise InputError(f"the task counts {shown(text)} cannot be read: {shown(item)} is not N or N(xTIMES).")
        if first <= node < first + times:
            found = count
        first += times
    return found


def _names(pattern: Sequence[str | Choices]) -> Iterator[str]:
    if not pattern:
        yield ""
        return
    first, *rest = pattern
    if isinstance(first, str):
        yield from (first + name for name in _names(rest))
        return
    for digits, numbers in first:
        for number in numbers:
            yield from (f"{number:0{digits}d}{name}" for name in _names(rest))


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    return [item for item in re.split(r",(?![^\[]*\])", text.strip()) if item]


def _ranges(text: str, whole: str) -> Choices:
    """`1-3,07` -> 1 2 3 07, with the zeros of the first number."""
    found = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        low, high = read_digits(first), read_digits(last or first)
        if low is None or high is None or low > high:
            raise InputError(f"the node list {shown(whole)} cannot be read: {shown(item)} is not a number or a range.")
        found.append((len(first), range(low, high + 1)))
    return found
