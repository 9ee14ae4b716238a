"""A budget: what a step may take at most, as a file beside the layout; CI fails where the compiled program takes more.

memory="70 GB"                                      peak of a device
wire="12 GB"                                        all that a device sends in a step
surprising="1 MB"                                   what is sent unplanned, or more than planned
collectives=[dict(kind="all_gather", axes=["fast"], wire="2 GB"), ...]       by kind and mesh axes
others="0 B"                                        kinds and axes that no line of `collectives` names
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshtrain.audit.collectives import Found
from meshtrain.audit.ledger import Ledger
from meshtrain.cost.collective import KINDS
from meshtrain.cost.quantity import read_bytes
from meshtrain.errors import InputError, MeshtrainError, nearest
from meshtrain.layout.words import size_text

KEYS = ("memory", "wire", "surprising", "collectives", "others")
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
        for key in mapping:
            if key not in KEYS:
                keys = " ".join(KEYS)
                raise InputError(f"budget.{key}: there is no such key.{nearest(key, KEYS)} The keys are: {keys}.")
        limits = {key: _bytes(mapping.get(key), f"budget.{key}") for key in KEYS if key != "collectives"}
        lines: dict[tuple[str, tuple[str, ...]], float] = {}
        for number, line in enumerate(mapping.get("collectives", ())):
            where = f"budget.collectives[{number}]"
            if not isinstance(line, Mapping) or set(line) != {"kind", "axes", "wire"} or line["kind"] not in KINDS:
                raise InputError(
                    f"{where}: expected dict(kind=KIND, axes=[AXIS, ..], wire='1 GB') with a kind of"
                    f" {', '.join(KINDS)}, not {dict(line) if isinstance(line, Mapping) else line!r}."
                )
            axes = (line["axes"],) if isinstance(line["axes"], str) else tuple(line["axes"])
            lines[line["kind"], axes] = _bytes(line["wire"], f"{where}.wire") or 0.0
        return cls(limits["memory"], limits["wire"], limits["surprising"], lines, limits["others"])

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


def _bytes(value: Any, key: str) -> float | None:
    if value is None:
        return None
    return 0.0 if value == NOTHING else read_bytes(value, key).value
