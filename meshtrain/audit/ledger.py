"""The ledger: what the plan expects a step to send, held against what the compiled program sends, to the byte.

    expected    as planned                          larger      as planned, but more often, wider, or not scattered
    missing     planned, but not in the program     surprising  in the program, but not planned

A program's branches may run less often than its loops turn; there the plan's count holds, if it is not above the most.
So it does for how much a ragged exchange sends (`at_even_load`): only its buffers are in the program.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshtrain.audit.collectives import Found
from meshtrain.cost.collective import Collective, wire_factor

STATUSES = ("expected", "larger", "missing", "surprising")
SCALARS = "sums of a few numbers"
FEW = 16  # numbers: what a loss, a norm or a count sends
SAME = 1e-6  # sizes that differ by less are the same


@dataclass(frozen=True)
class Entry:
    """A line: planned and found bytes that a device sends in a step. note: what is different, or "". overlapped: of
    the found bytes, those that run beside compute in the compiler's schedule."""

    status: str
    kind: str
    axes: tuple[str, ...]
    phase: str
    dim: str
    why: str
    planned: float
    found: float
    times: int
    source: str = ""
    note: str = ""
    overlapped: float = 0.0


@dataclass(frozen=True)
class Ledger:
    """All lines: every found byte is in exactly one."""

    entries: tuple[Entry, ...]

    @property
    def planned(self) -> float:
        """Bytes that the plan says a device sends in a step."""
        return sum(entry.planned for entry in self.entries)

    @property
    def found(self) -> float:
        """Bytes that the program says it sends."""
        return sum(entry.found for entry in self.entries)

    @property
    def overlapped(self) -> float:
        """Of the found bytes, those that the schedule has beside compute."""
        return sum(entry.overlapped for entry in self.entries)

    def of(self, status: str) -> list[Entry]:
        """The lines of a status."""
        return [entry for entry in self.entries if entry.status == status]


@dataclass
class _Item:
    """A found array and how often it is still to be accounted for."""

    found: Found
    left: int

    def wire(self, times: int) -> float:
        return self.found.bytes * times * wire_factor(self.found.kind, self.found.partners.size)


@dataclass
class _Need:
    """A planned collective, how often it is still to be found, and what was found for it."""

    plan: Collective
    left: int
    taken: list[tuple[_Item, int]]

    @property
    def wire_left(self) -> float:
        return self.plan.wire_bytes * self.left / self.plan.count


def at_even_load(found: Sequence[Found], planned: Sequence[Collective]) -> list[Found]:
    """What was found, ragged exchanges with the bytes of the plan where their buffers are those that it has room for:
    they send what there is, and the program says only how much that may be."""

    def one(found: Found) -> Found:
        alike = (
            plan for plan in planned
            if plan.room and plan.axes == found.partners.axes and _near(found.bytes, plan.room)
        )  # fmt: skip
        plan = next(alike, None) if found.ragged else None
        return found if plan is None else replace(found, bytes=plan.bytes)

    return [one(found) for found in found]


def make_ledger(planned: Sequence[Collective], found: Sequence[Found]) -> Ledger:
    """The ledger of a program. Exact sizes are matched first, then what differs in a way that has a name."""
    few = [one for one in found if _is_few(one)]
    items = [_Item(one, one.times) for one in found if not _is_few(one)]
    needs = [_Need(one, one.count, []) for one in planned]
    for branch in (False, True):  # what stands in a branch comes last: it may be less than it seems
        some = [item for item in items if item.found.branch == branch]
        for alike in (_exact_in_phase, _exact):
            for need in needs:
                _take(need, some, alike)
    items.sort(key=lambda item: item.found.branch)
    entries = [_expected(need) for need in needs if need.taken]
    items = [item for item in items if item.left and not (item.found.branch and _planned_size(needs, item))]
    needs = [need for need in needs if need.left]
    entries += _regrouped(needs, items) + _at_once(needs, items)
    for note, alike in _DIFFERENCES:
        for need in needs:
            before = len(need.taken)
            _take(need, items, alike)
            entries += [_larger(need, item, times, note) for item, times in need.taken[before:]]
    entries += [_missing(need) for need in needs if need.left]
    entries += [_left_over(item, planned) for item in items if item.left]
    if few:
        wire = sum(_Item(one, one.times).wire(one.times) for one in few)
        entries.append(Entry("expected", "all_reduce", (), "update", "", SCALARS, wire, wire, len(few)))
    return Ledger(tuple(entries))


def _is_few(one: Found) -> bool:
    return one.kind in ("all_reduce", "all_gather") and math.prod(one.shape) <= FEW


def _take(need: _Need, items: Iterable[_Item], alike: Callable[[_Need, _Item], bool]) -> None:
    for item in items:
        if need.left and item.left and alike(need, item):
            times = min(need.left, item.left)
            need.left -= times
            item.left -= times
            need.taken.append((item, times))


def _place(need: _Need, item: _Item) -> bool:
    return need.plan.axes == item.found.partners.axes and item.found.partners.whole


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= SAME * max(a, b)


def _exact(need: _Need, item: _Item) -> bool:
    return need.plan.kind == item.found.kind and _place(need, item) and _near(need.plan.bytes, item.found.bytes)


def _exact_in_phase(need: _Need, item: _Item) -> bool:
    return need.plan.phase == item.found.phase and _exact(need, item)


def _wider(need: _Need, item: _Item) -> bool:
    wide = any(_near(need.plan.bytes * factor, item.found.bytes) for factor in (2, 4))
    return need.plan.kind == item.found.kind and _place(need, item) and wide


def _not_scattered(need: _Need, item: _Item) -> bool:
    kinds = (need.plan.kind, item.found.kind) == ("reduce_scatter", "all_reduce")
    return kinds and _place(need, item) and _near(need.plan.bytes, item.found.bytes)


_DIFFERENCES = (
    ("a wider dtype than planned", _wider),
    ("an all-reduce in place of a reduce-scatter", _not_scattered),
)


def _planned_size(needs: Iterable[_Need], item: _Item) -> bool:
    return any(_exact(need, item) for need in needs)


def _expected(need: _Need) -> Entry:
    plan = need.plan
    times = sum(times for _, times in need.taken)
    sources = dict.fromkeys(item.found.source for item, _ in need.taken if item.found.source)
    wire = plan.wire_bytes * times / plan.count
    return Entry(
        "expected", plan.kind, plan.axes, plan.phase, plan.dim, plan.why, wire,
        sum(item.wire(times) for item, times in need.taken), times, " ".join(sources),
        overlapped=sum(item.wire(times) for item, times in need.taken if item.found.beside.computes),
    )  # fmt: skip


def _regrouped(needs: list[_Need], items: list[_Item]) -> list[Entry]:
    """Where what is left of the plan and of the program are the same bytes of a kind over the same axes in other
    pieces: of one line (the turns of a loop summed behind it), or of all lines together."""
    entries = []
    for mine, theirs in _same_bytes(needs, items):
        wire, total = sum(item.wire(item.left) for item in theirs), sum(need.wire_left for need in mine)
        if not theirs or not _near(wire, total):
            continue
        sources = " ".join(dict.fromkeys(item.found.source for item in theirs if item.found.source))
        why = "; ".join(dict.fromkeys(need.plan.why for need in mine))
        beside = sum(item.wire(item.left) for item in theirs if item.found.beside.computes)
        plan, times = mine[0].plan, sum(item.left for item in theirs)
        entries.append(
            Entry("expected", plan.kind, plan.axes, plan.phase, plan.dim, why, total, wire, times, sources,
                  "in other pieces", beside)
        )  # fmt: skip
        for need in mine:
            need.left = 0
        for item in theirs:
            item.left = 0
    return entries


def _same_bytes(needs: list[_Need], items: list[_Item]) -> Iterator[tuple[list[_Need], list[_Item]]]:
    """What may be the same in other pieces, as it stands when it is asked for."""
    for need in needs:
        for item in items:
            if need.left and item.left and (need.plan.kind, need.plan.axes) == (
                item.found.kind, item.found.partners.axes
            ):  # fmt: skip
                yield [need], [item]
    for kind, axes in dict.fromkeys((need.plan.kind, need.plan.axes) for need in needs):
        yield (
            [need for need in needs if need.left and (need.plan.kind, need.plan.axes) == (kind, axes)],
            [item for item in items if item.left and (item.found.kind, item.found.partners.axes) == (kind, axes)],
        )


def _at_once(needs: list[_Need], items: list[_Item]) -> list[Entry]:
    """One all-reduce over all axes, where a reduce-scatter over some and a sum of the parts over others is planned."""
    entries = []
    for item, equal in [(item, equal) for equal in (True, False) for item in items]:
        one = item.found
        for why in dict.fromkeys(need.plan.why for need in needs if need.left):
            mine = [need for need in needs if need.left and need.plan.why == why]
            if equal and any(need.left != item.left for need in mine):
                continue  # (those that run as often belong together first)
            axes = {axis for need in mine for axis in need.plan.axes}
            alike = len(mine) > 1 and one.kind == "all_reduce" and one.partners.whole and axes == set(one.partners.axes)
            if not (item.left and alike and _near(max(need.plan.bytes for need in mine), one.bytes)):
                continue
            times = min(item.left, *(need.left for need in mine))
            planned = sum(need.plan.wire_bytes * times / need.plan.count for need in mine)
            beside = item.wire(times) if one.beside.computes else 0.0
            entries.append(
                Entry("larger", one.kind, one.partners.axes, one.phase, "", why, planned, item.wire(times), times,
                      one.source, "one all-reduce in place of a reduce-scatter and a sum of the parts", beside)
            )  # fmt: skip
            item.left -= times
            for need in mine:
                need.left -= times
    return entries


def _larger(need: _Need, item: _Item, times: int, note: str) -> Entry:
    plan, wire = need.plan, item.wire(times)
    return Entry(
        "larger", item.found.kind, plan.axes, plan.phase, plan.dim, plan.why, plan.wire_bytes * times / plan.count,
        wire, times, item.found.source, note, wire if item.found.beside.computes else 0.0,
    )  # fmt: skip


def _missing(need: _Need) -> Entry:
    plan = need.plan
    return Entry("missing", plan.kind, plan.axes, plan.phase, plan.dim, plan.why, need.wire_left, 0.0, need.left)


def _left_over(item: _Item, planned: Sequence[Collective]) -> Entry:
    """A collective of a planned size that runs more often than planned, or one that nobody asked for."""
    one, wire = item.found, item.wire(item.left)
    plan = next((plan for plan in planned if _exact(_Need(plan, 0, []), item)), None)
    beside = wire if one.beside.computes else 0.0
    part = "" if one.partners.whole else ", over parts of the axes"
    what = f"{one.dtype}{list(one.shape)} of {one.op.rpartition('/')[2] or 'the compiler'}{part}"
    if plan is not None:
        return Entry("larger", one.kind, plan.axes, one.phase, plan.dim, plan.why, 0.0, wire, item.left, one.source,
                     "more often than planned", beside)  # fmt: skip
    return Entry("surprising", one.kind, one.partners.axes, one.phase, "", what, 0.0, wire, item.left, one.source,
                 "", beside)  # fmt: skip
