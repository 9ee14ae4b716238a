"""What changes from one layout to another: settings, arrays that are cut otherwise, bytes per device, constraints."""

from meshtrain.layout.inventory import KINDS, WEIGHT_KINDS
from meshtrain.layout.table import Row
from meshtrain.layout.words import plural, size_text, sizes_text
from meshtrain.run.show.report import Report
from meshtrain.run.show.text import findings_text
from meshtrain.run.terminal import aligned, shape_text

SETTINGS = ("accumulate", "remat", "attention", "order", "pipeline", "experts")


def difference_text(old: Report, new: Report) -> str:
    """The changes from `old` to `new`, both of the same run."""
    lines = [f"{old.name} -> {new.name}", "", f"  {old.name} is {old.words}.", f"  {new.name} is {new.words}.", ""]
    facts = [("mesh", _mesh(old), _mesh(new))]
    facts += [(key, str(getattr(old.place.layout, key)), str(getattr(new.place.layout, key))) for key in SETTINGS]
    changed = [(key, before, "->", after) for key, before, after in facts if before != after]
    lines += [*aligned(changed, right=False), ""] if changed else []
    lines += ["STATE per device", "", *aligned(_bytes(old, new)), ""]
    for kind in KINDS:
        lines += _arrays(kind, old, new)
    return "\n".join([*lines, f"FINDINGS on {new.name}", "", *findings_text(new.findings)])


def _mesh(report: Report) -> str:
    return sizes_text(report.place.axis_sizes) or "one device"


def _bytes(old: Report, new: Report) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in (*WEIGHT_KINDS, "together"):
        before, after = (
            sum(report.state_bytes.values()) if kind == "together" else report.state_bytes.get(kind, 0)
            for report in (old, new)
        )
        change = "the same" if before == after else f"{after / before:.3g} times" if before else ""
        rows.append((kind, size_text(before), "->", size_text(after), change))
    return rows


def _arrays(kind: str, old: Report, new: Report) -> list[str]:
    """The arrays of a class that are cut otherwise; for activations those are the sharding constraints."""
    before = {row.path: row for row in old.tables.get(kind, [])}
    after = {row.path: row for row in new.tables.get(kind, [])}
    changed = [
        (path, row.cut, shape_text(row.local), "->", after[path].cut, shape_text(after[path].local))
        for path, row in before.items()
        if path in after and _differs(row, after[path])
    ]
    what = "constraint" if kind == "activations" else "array"
    heading = f"{kind.upper()}: {len(changed)} of {plural(len(before), what)} are cut otherwise"
    return [heading, "", *(aligned(changed, right=False) if changed else ["  none"]), ""]


def _differs(old: Row, new: Row) -> bool:
    return (old.cut, old.local) != (new.cut, new.local)
