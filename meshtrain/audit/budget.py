"""A budget: what a step may take at most, as a file beside the layout; CI fails where the compiled program takes more.

memory="70 GB"                                      peak of a device
wire="12 GB"                                        all that a device sends in a step
surprising="1 MB"                                   what is sent unplanned, or more than planned
collectives=[dict(kind="all_gather", axes=["fast"], wire="2 GB"), ...]       by kind and mesh axes
others="0 B"                                        kinds and axes that no line of `collectives` names
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshtrain.audit.collectives import Found
from meshtrain.audit.ledger import Ledger
from meshtrain.cost.collective import KINDS
from meshtrain.cost.quantity import read_bytes
from meshtrain.errors import InputError, MeshtrainError, known_keys, nearest
from meshtrain.layout.words import size_text

KEYS = ("memory", "wire", "surprising", "collectives", "others")
LINE = "dict(kind=KIND, axes=[AXIS, ..], wire='1 GB')"
NOTHING = "0 B"  # the one form of zero
SCALAR_BYTES = 1024  # sums of a few numbers stand in no budget


class BudgetError(MeshtrainError):
    """The compiled program takes more than a budget allows; the message names each line."""

    exit_code = 8


@dataclass(frozen=True)
class Budget:
    """Bytes of a device; None: any number. collectives: (kind, axes) -> bytes that it sends in a step."""

    memory: float | None
    wire: float | None
    surprising: float | None
    collectives: Mapping[tuple[str, tuple[str, ...]], float]
    others: float | None

    @classmethod
    def parse(cls, mapping: Mapping[str, Any]) -> "Budget":
        """InputError for a key or a value that is not of these forms."""
        known_keys("budget", mapping, KEYS)
        limits = {key: _bytes(mapping.get(key), f"budget.{key}") for key in KEYS if key != "collectives"}
        lines: dict[tuple[str, tuple[str, ...]], float] = {}
        given = mapping.get("collectives") or ()
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise InputError(f"budget.collectives: expected a list of {LINE}, not {given!r}.")
        for number, line in enumerate(given):
            kind, axes, limit = _line(line, f"budget.collectives[{number}]")
            if (kind, axes) in lines:
                over = " x ".join(axes)
                raise InputError(f"budget.collectives[{number}]: {kind} over {over} has a line already; leave one.")
            lines[kind, axes] = limit
        if not lines and all(value is None for value in limits.values()):
            raise InputError(f"budget: there is no limit in it. The keys are: {' '.join(KEYS)}.")
        return cls(limits["memory"], limits["wire"], limits["surprising"], lines, limits["others"])

    def on_mesh(self, axes: Sequence[str]) -> "Budget":
        """The budget with the axes of its lines in the order of the mesh; InputError for axes that it does not have."""
        lines = {}
        for number, ((kind, wanted), limit) in enumerate(self.collectives.items()):
            for axis in wanted:
                if axis not in axes:
                    raise InputError(
                        f"budget.collectives[{number}].axes: the layout's mesh has no axis {axis!r}."
                        f"{nearest(axis, axes)} Its axes are: {' '.join(axes)}."
                    )
            lines[kind, tuple(axis for axis in axes if axis in wanted)] = limit
        return replace(self, collectives=lines)

    def exceeded(self, peak: int, found: Sequence[Found], ledger: Ledger) -> list[str]:
        """What is above its limit, one sentence each."""
        lines = []

        def check(limit: float | None, value: float, what: str) -> None:
            if limit is not None and value > limit:
                allowed = f"{value / limit:.2f} times the {size_text(limit)}" if limit else "and nothing is"
                lines.append(f"{what}: {size_text(value)}, {allowed} allowed")

        check(self.memory, peak, "peak memory")
        check(self.wire, ledger.found, "bytes sent in a step")
        beyond = sum(e.found - e.planned for e in ledger.entries if e.status in ("larger", "surprising"))
        check(self.surprising, beyond, "bytes sent beyond the plan")
        by_line: dict[tuple[str, tuple[str, ...]], float] = {}
        for one in found:
            key = one.kind, one.partners.axes
            by_line[key] = by_line.get(key, 0.0) + one.wire_bytes
        for (kind, axes), value in sorted(by_line.items()):
            limit = self.collectives.get((kind, axes), self.others)
            if value > SCALAR_BYTES:
                check(limit, value, f"{kind} over {' x '.join(axes)}")
        return lines


def _line(line: Any, where: str) -> tuple[str, tuple[str, ...], float]:
    """(kind, axes, bytes) of a line of `collectives`."""
    fits = isinstance(line, Mapping) and set(line) == {"kind", "axes", "wire"} and line["kind"] in KINDS
    axes = line["axes"] if fits else ()
    axes = (axes,) if isinstance(axes, str) else axes
    if not fits or not axes or not isinstance(axes, Sequence) or not all(isinstance(axis, str) for axis in axes):
        said = dict(line) if isinstance(line, Mapping) else line
        raise InputError(f"{where}: expected {LINE} with a kind of {', '.join(KINDS)}, not {said!r}.")
    limit = _bytes(line["wire"], f"{where}.wire")
    if limit is None:
        raise InputError(f"{where}.wire: a line without a limit; {NOTHING!r} allows nothing, no line allows anything.")
    return line["kind"], tuple(axes), limit


def _bytes(value: Any, key: str) -> float | None:
    if value is None:
        return None
    return 0.0 if value == NOTHING else read_bytes(value, key).value
