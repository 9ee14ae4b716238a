"""Plan against program: what is as planned, missing, surprising or larger; and every byte is counted."""

from dataclasses import replace

from meshtrain.audit.budget import Budget
from meshtrain.audit.collectives import Found
from meshtrain.audit.groups import Partners
from meshtrain.audit.ledger import SCALARS, Ledger, at_even_load, make_ledger
from meshtrain.audit.overlap import Beside
from meshtrain.cost.collective import Collective

OVER = Partners(("x",), 4)


def found(kind: str = "all_gather", num_bytes: int = 1000, times: int = 3, **changes: object) -> Found:
    one = Found(
        kind, OVER, "bf16", (num_bytes // 2,), num_bytes, times, False, "forward", "op", "a.py:1", "n", Beside()
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def plan(kind: str = "all_gather", num_bytes: int = 1000, count: int = 3, **changes: object) -> Collective:
    one = Collective(kind, ("x",), 4, num_bytes, count, "forward", "embed", "weights")
    return replace(one, **changes)  # type: ignore[arg-type]


def statuses(ledger: Ledger) -> list[tuple[str, float, float]]:
    return [(entry.status, entry.planned, entry.found) for entry in ledger.entries]


def test_as_planned() -> None:
    ledger = make_ledger([plan()], [found(times=1), found(times=2, beside=Beside(1.0, 1, True))])
    assert statuses(ledger) == [("expected", 2250.0, 2250.0)]
    assert ledger.overlapped == 1500


def test_missing_and_surprising() -> None:
    ledger = make_ledger([plan()], [found("permute", 1000, 1)])
    assert statuses(ledger) == [("missing", 2250.0, 0.0), ("surprising", 0.0, 1000.0)]
    other = replace(found(), partners=Partners(("y",), 4))
    assert [entry.status for entry in make_ledger([plan()], [other]).entries] == ["missing", "surprising"]


def test_more_often_wider_and_not_scattered() -> None:
    assert statuses(make_ledger([plan()], [found(times=5)])) == [("expected", 2250.0, 2250.0), ("larger", 0.0, 1500.0)]
    assert statuses(make_ledger([plan()], [found(num_bytes=2000)])) == [("larger", 2250.0, 4500.0)]
    scattered = make_ledger([plan("reduce_scatter")], [found("all_reduce")])
    assert statuses(scattered) == [("larger", 2250.0, 4500.0)]
    assert "reduce-scatter" in scattered.entries[0].note


def test_other_pieces_are_the_same_bytes() -> None:
    ledger = make_ledger([plan(num_bytes=600), plan(num_bytes=400)], [found(num_bytes=1000)])
    assert [entry.note for entry in ledger.entries] == ["in other pieces"]
    assert ledger.planned == ledger.found == 2250


def test_turns_that_are_summed_behind_their_loop_are_the_same_bytes() -> None:
    needs = [plan("all_reduce", 100, why="a"), plan("all_reduce", 50, why="b")]
    ledger = make_ledger(needs, [found("all_reduce", 300, 1)])  # those of b are not there
    assert [(entry.status, entry.why) for entry in ledger.entries] == [("expected", "a"), ("missing", "b")]


def test_a_ragged_exchange_sends_what_the_plan_says_if_its_buffer_is_the_planned_one() -> None:
    exchange = plan("all_to_all", room=4000)
    assert statuses(make_ledger([exchange], at_even_load([found("all_to_all", 4000, ragged=True)], [exchange]))) == [
        ("expected", 2250.0, 2250.0)
    ]
    for other in (found("all_to_all", 5000, ragged=True), found("all_to_all", 4000)):
        assert at_even_load([other], [exchange]) == [other]


def test_a_sum_over_two_groups_of_axes_at_once() -> None:
    needs = [plan("reduce_scatter"), plan("all_reduce", 250, axes=("y",), size=2)]
    ledger = make_ledger(needs, [replace(found("all_reduce"), partners=Partners(("x", "y"), 8))])
    assert [entry.status for entry in ledger.entries] == ["larger"]
    assert ledger.planned == 3 * (750 + 250)
    assert ledger.found == 3 * 2 * 7 / 8 * 1000


def test_in_a_branch_the_plan_says_how_often() -> None:
    assert statuses(make_ledger([plan()], [found(times=9, branch=True)])) == [("expected", 2250.0, 2250.0)]
    fewer = make_ledger([plan()], [found(times=2, branch=True)])
    assert [entry.status for entry in fewer.entries] == ["expected", "missing"]


def test_a_few_numbers_are_one_line() -> None:
    ledger = make_ledger([], [found("all_reduce", 16, 1, shape=(4,)), found("all_reduce", 4, 1, shape=())])
    assert [(entry.status, entry.why, entry.times) for entry in ledger.entries] == [("expected", SCALARS, 2)]


def test_a_budget_names_what_is_above_it() -> None:
    programs = [found(num_bytes=10_000), found("all_reduce", 10_000, 1)]
    ledger = make_ledger([plan(num_bytes=10_000)], programs)
    lines = [dict(kind="all_gather", axes=["x"], wire="23 kB")]
    enough = Budget.parse(dict(memory="1 GB", wire="38 kB", surprising="15 kB", collectives=lines, others="15 kB"))
    assert enough.exceeded(10**9, programs, ledger) == []
    tight = Budget.parse(dict(memory="1 GB", wire="37 kB", surprising="1 kB", collectives=lines, others="0 B"))
    said = tight.exceeded(2 * 10**9, programs, ledger)
    assert [line.split(":")[0] for line in said] == [
        "peak memory", "bytes sent in a step", "bytes sent beyond the plan", "all_reduce over x",
    ]  # fmt: skip
