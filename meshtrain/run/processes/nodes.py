"""Slurm's short forms, written out: lists of nodes (`n[1-3,07],m5`) and of counts (`8(x2),4`)."""

import itertools
import re

from meshtrain.errors import InputError

_PART = re.compile(r"\[([^\[\]]*)\]")


def expand_nodes(text: str) -> list[str]:
    """`rack[1-2]n[08-10],m5` -> rack1n08 rack1n09 rack1n10 rack2n08 ... m5, in Slurm's order. InputError if wrong."""
    names: list[str] = []
    for item in _split(text):
        pieces = _PART.split(item)  # literal, range, literal, range, ..., literal
        if any(mark in piece for piece in pieces[::2] for mark in "[]"):
            raise InputError(f"the node list {text!r} cannot be read: its brackets do not match.")
        choices = [[piece] if i % 2 == 0 else _ranges(piece, text) for i, piece in enumerate(pieces)]
        names += ["".join(choice) for choice in itertools.product(*choices)]
    if not names:
        raise InputError(f"the node list {text!r} cannot be read: it names no node.")
    return names


def expand_counts(text: str) -> list[int]:
    """`8(x2),4` -> 8 8 4: the number of tasks of each node. InputError if malformed."""
    counts: list[int] = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if found is None:
            raise InputError(f"the task counts {text!r} cannot be read: {item!r} is not N or N(xTIMES).")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    return [item for item in re.split(r",(?![^\[]*\])", text.strip()) if item]


def _ranges(text: str, whole: str) -> list[str]:
    """`1-3,07` -> 1 2 3 07, with the zeros of the first number."""
    names: list[str] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise InputError(f"the node list {whole!r} cannot be read: {item!r} is not a number or a range.")
        names += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return names
