"""An audit as text for the terminal: memory beside the prediction, the ledger, overlap, FLOPs, copies."""

from collections.abc import Iterable

from meshtrain.audit.ledger import STATUSES, Entry, Ledger
from meshtrain.layout.words import plural, size_text, sizes_text
from meshtrain.run.audit.report import AuditReport
from meshtrain.run.terminal import aligned

SMALL = 1e-4  # of all bytes: lines below are summed up


def audit_text(report: AuditReport) -> str:
    """The whole report."""
    mesh = sizes_text(report.mesh) or "one device"
    lines = [
        f"{report.name} on {report.num_devices:,} x {report.gpu}, mesh {mesh}",
        "",
        f"  This is {report.words}.",
        f"  Compiled and read in {report.seconds:.0f} s; no GPU was touched.",
        "",
        *_cannot_tell(report),
        *memory_lines(report),
        "",
        *ledger_lines(report.ledger),
        "",
        *flops_lines(report),
    ]
    if report.copies:
        lines += ["", "LARGE COPIES that the compiler adds", ""]
        lines += aligned(
            [
                (size_text(copy.bytes), f"x {copy.times}", f"{copy.dtype}{list(copy.shape)}", copy.source)
                for copy in report.copies
            ]
        )
    return "\n".join(lines)


def _cannot_tell(report: AuditReport) -> list[str]:
    if not report.cannot_tell:
        return []
    return ["CPU PROGRAM: it shows which collectives there are. What it cannot tell of a GPU:",
            *(f"  - {line}" for line in report.cannot_tell), ""]  # fmt: skip


def memory_lines(report: AuditReport) -> list[str]:
    """Peak memory as compiled and as planned."""
    lines = [
        "MEMORY of one device",
        "",
        *aligned([("state and batch", size_text(report.state)), ("all else at the peak", size_text(report.temporary))]),
        f"  peak, compiled   {size_text(report.peak)}",
    ]
    if report.predicted:
        lines.append(f"  peak, planned    {size_text(report.predicted)} ({report.predicted / report.peak - 1:+.1%})")
    return lines


def ledger_lines(ledger: Ledger) -> list[str]:
    """Every collective: planned and found bytes that a device sends in a step, grouped by what became of the plan."""
    lines = [
        "LEDGER: bytes that one device sends in a step",
        "",
        f"  planned {size_text(ledger.planned)}, found {size_text(ledger.found)}"
        + (f" ({ledger.found / ledger.planned - 1:+.2%})" if ledger.planned else "")
        + f"; {ledger.overlapped / ledger.found:.0%} of it beside compute" * bool(ledger.found),
    ]
    least = SMALL * max(ledger.found, ledger.planned)
    for status in STATUSES:
        entries = sorted(ledger.of(status), key=lambda entry: -max(entry.found, entry.planned))
        shown = [entry for entry in entries if max(entry.found, entry.planned) >= least]
        rest = [entry for entry in entries if max(entry.found, entry.planned) < least]
        if entries:
            lines += ["", f"  {status.upper()}", *aligned(list(_rows(shown, rest)))]
    return lines


def _rows(shown: Iterable[Entry], rest: list[Entry]) -> Iterable[tuple[str, ...]]:
    yield "kind", "axes", "phase", "dim", "times", "planned", "found", "beside", "what", "where"
    for one in shown:
        note = f"; {one.note}" if one.note else ""
        beside = f"{one.overlapped / one.found:.0%}" if one.found else ""
        yield (one.kind, " x ".join(one.axes), one.phase, one.dim, f"{one.times:,}", size_text(one.planned),
               size_text(one.found), beside, one.why + note, one.source)  # fmt: skip
    if rest:
        planned, found = (size_text(sum(getattr(one, side) for one in rest)) for side in ("planned", "found"))
        yield "", "", "", "", "", planned, found, "", plural(len(rest), "small line"), ""


def flops_lines(report: AuditReport) -> list[str]:
    """FLOPs of the program's products beside the model's."""
    ratio = report.flops / report.model_flops if report.model_flops else 0.0
    without = ", attention left out on both sides (a library has it)" if report.library_attention else ""
    if any(one.branch for one in report.found):
        without += "; at most, since branches count as if they were always taken"
    return [
        "FLOPS of matrix products, one device and step",
        "",
        f"  compiled {report.flops:.3e}, model {report.model_flops:.3e}: {ratio:.2f} times{without}",
    ]
