"""`Finding`: one thing to say about a layout: how grave, which config line, what is wrong and what would work.

Whoever finds a problem writes its text once: `placement` raises it when a program needs the array, `check` gathers it
with all others before anything is compiled.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from meshtrain.errors import InputError

T = TypeVar("T")

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """severity: "error" stops, "warning" is counted and shown (an error under --strict), "note" is worth knowing.

    code: a stable word for programs. where: the config line(s) to change. message, remedy: sentences. arrays: the
    paths that it concerns (filled in by `check`).
    """

    severity: str
    code: str
    where: str
    message: str
    remedy: str = ""
    arrays: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.where}: {self.message}", self.remedy) if part)


def raise_errors(findings: Iterable[Finding]) -> None:
    """InputError with the text of every finding that is an error, one a line; nothing where there is none."""
    texts = [str(finding) for finding in findings if finding.severity == ERROR]
    if texts:
        raise InputError("\n".join(texts))


def attempt(findings: list[Finding], code: str, function: Callable[..., T], *args: object) -> T | None:
    """`function(*args)`, or None where it raised an InputError: that is added to `findings`."""
    try:
        return function(*args)
    except InputError as error:
        where, _, message = str(error).partition(": ")
        findings.append(Finding(ERROR, code, where, message))
        return None


def merge(findings: Sequence[Finding]) -> list[Finding]:
    """Findings that say the same of several arrays as one, with all their arrays; gravest first, else in order."""
    merged: dict[tuple[str, ...], Finding] = {}
    for finding in findings:
        key = (finding.severity, finding.code, finding.where, finding.message, finding.remedy)
        before = merged[key].arrays if key in merged else ()
        merged[key] = replace(finding, arrays=tuple(dict.fromkeys((*before, *finding.arrays))))
    return sorted(merged.values(), key=lambda finding: (ERROR, WARNING, NOTE).index(finding.severity))
