"""Every schedule, over stages, microbatches and chunks: valid, and as short and as small as its theory says."""

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.plan import make_plan
from meshtrain.parallel.pipeline.schedule import schedule
from meshtrain.parallel.pipeline.table import B, F, Table, W, check_table
from meshtrain.parallel.pipeline.timing import (
    Costs,
    asynchronous_time,
    ideal_idle,
    lock_step,
    lock_step_idle,
    lock_step_time,
)

CHUNKS = range(1, 5)
FEW = sorted({(p, m) for p in (2, 3, 4, 8) for m in (1, 2, p - 1, p, p + 1, 2 * p + 3)} | {(16, 20), (5, 64)})
MORE = sorted({(p, m) for p in range(2, 17) for m in (1, p - 1, p, p + 1, 37, 64)})

# Sizes: a few in `make check`, more in `make test`.
sizes = pytest.mark.parametrize("sizes", [FEW, pytest.param(MORE, marks=pytest.mark.slow)], ids=["few", "more"])


def idle_formula(p: int, m: int, v: int) -> float:
    """THEORY, section 4; with fewer microbatches than stages a second chunk cannot follow on without a gap."""
    ticks = v * m + p - 1 if m >= p or v == 1 else v * p + m - 1
    return 1 - v * m / ticks


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@sizes
def test_gpipe_and_1f1b(name: str, sizes: list[tuple[int, int]]) -> None:
    for p, m in sizes:
        table = schedule(name, p, m)
        locked = lock_step(table)
        check_table(table)
        check_table(locked)
        make_plan(locked)  # plays it
        assert ideal_idle(table) == pytest.approx(idle_formula(p, m, 1)), (p, m)
        assert lock_step_idle(locked) == pytest.approx(idle_formula(p, m, 1)), (p, m)
        assert table.num_sends == locked.num_sends == {"forward": m * (p - 1), "backward": m * (p - 1)}
        stages = np.arange(p)
        holds = np.full((2, p), m) if name == "gpipe" else np.stack([p - stages, 2 * (p - 1 - stages) + 1])
        np.testing.assert_array_equal([table.live, locked.live], np.minimum(holds, m), err_msg=str((p, m)))


@pytest.mark.parametrize("chunks", CHUNKS)
@sizes
def test_interleaved(chunks: int, sizes: list[tuple[int, int]]) -> None:
    """The live inputs are Megatron's: 2 (p - s - 1) warm-up passes, a group for each further chunk, and one."""
    for p, m in sizes:
        table = schedule("interleaved", p, m, chunks)
        locked = lock_step(table)
        check_table(table)
        check_table(locked)
        make_plan(locked)
        assert ideal_idle(table) == pytest.approx(idle_formula(p, m, chunks)), (p, m)
        assert lock_step_idle(locked) == pytest.approx(idle_formula(p, m, chunks)), (p, m)
        group = -(-m // max(m // p, 1))  # p where p divides m
        bound = 2 * (p - 1 - np.arange(p)) + (chunks - 1) * group + 1
        assert (locked.live <= bound).all(), (p, m)
        assert (table.live <= (bound if chunks > 1 else p - np.arange(p))).all(), (p, m)
        assert locked.num_sends["forward"] == m * (p * chunks - 1)


@sizes
def test_zb_h1(sizes: list[tuple[int, int]]) -> None:
    """A third of 1F1B's bubble at 1F1B's peak, asynchronous; two thirds in lock step, where only W is without idle."""
    for p, m in sizes:
        table, plain = schedule("zb_h1", p, m), schedule("1f1b", p, m)
        locked = lock_step(table)
        check_table(table)
        check_table(locked)
        make_plan(locked)
        assert table.live.max() == min(p, m) == plain.live.max()
        assert locked.live.max() == lock_step(plain).live.max()
        # With F = B = W = 1 the first stage has 2 p - 1 ticks until its first B, of which it can fill at most m.
        idle = asynchronous_time(table) - 3 * m
        assert idle == max(p - 1, 2 * p - 1 - m), (p, m)
        if m >= p:
            assert idle <= 0.4 * (asynchronous_time(plain) - 3 * m)
        assert lock_step_time(locked) == 3 * m + 2 * (p - 1)


def test_published_bubbles() -> None:
    """THEORY, section 4."""
    for p, m, v, percent in [(4, 16, 1, 15.79), (4, 8, 1, 27.27), (16, 16, 1, 48.39), (16, 16, 8, 10.49),
                             (8, 64, 1, 9.86), (2, 8, 1, 11.11)]:  # fmt: skip
        table = schedule("interleaved", p, m, v)
        assert round(100 * ideal_idle(table), 2) == percent
        assert round(100 * lock_step_idle(lock_step(table)), 2) == percent


def test_bubble_follows_costs() -> None:
    """The share is the same whatever F and B cost where both fill and drain alike; W apart changes it."""
    costs = Costs(forward=1, backward=2, weight=1.5)
    for name, v in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        table = schedule(name, 4, 8, v)
        assert lock_step_idle(lock_step(table), costs) == pytest.approx(idle_formula(4, 8, v))
    assert asynchronous_time(schedule("gpipe", 4, 8), costs) == (8 + 3) * 4.5
    locked = lock_step(schedule("zb_h1", 4, 8))
    assert lock_step_time(locked, costs) == (8 + 3) * 3 + 8 * 1.5


def test_lock_step_in_closed_form() -> None:
    """1F1B: stage s runs F of microbatch t - s and B of microbatch t - (2 (p - 1) - s) at tick t."""
    p, m = 4, 6
    when = lock_step(schedule("1f1b", p, m)).when
    stage, microbatch = np.arange(p)[:, None], np.arange(m)
    np.testing.assert_array_equal(when[F], microbatch + stage)
    np.testing.assert_array_equal(when[B], microbatch + 2 * (p - 1) - stage)


def test_weight_gradients_of_a_microbatch_share_a_tick() -> None:
    when = lock_step(schedule("zb_h1", 4, 6)).when
    assert (when[W] == when[W][0]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f2b", 4, 8), ["'1f2b'", "1f1b"]),
        (("1f1b", 4, 8, 2), ["repeats", "interleaved"]),
        (("gpipe", 4, 0), ["microbatches", "at least 1"]),
        (("nowhere.csv", 4, 8), ["no file", "nowhere.csv"]),
    ],
)
def test_bad_arguments(arguments: tuple, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        schedule(*arguments)
    assert all(word in str(error.value) for word in words)


def moved(table: Table, op: int, piece: int, microbatch: int, ticks: int) -> Table:
    """The table with one op moved by some ticks (to cells that are idle)."""
    microbatches, chunks = table.microbatch.copy(), table.chunk.copy()
    stage = piece % table.num_stages
    tick = table.when[op, piece, microbatch]
    for array in (microbatches, chunks):
        array[tick + ticks, op, stage] = array[tick, op, stage]
        array[tick, op, stage] = -1
    return Table("moved", microbatches, chunks, table.num_microbatches, table.num_chunks)


def test_the_check_bites() -> None:
    table = schedule("1f1b", 4, 6)
    for (op, piece, microbatch, ticks), words in {
        (F, 1, 0, -1): "F of microbatch 0 on stage 1 is at tick 0",  # in the tick in which its input is made
        (B, 0, 0, -1): "B of microbatch 0 on stage 0 is at tick",  # before the stage behind has answered
        (F, 3, 5, +3): "B of microbatch 5 on stage 3 is at tick",  # a forward pass after its backward pass
    }.items():
        with pytest.raises(InputError, match=words):
            check_table(moved(table, op, piece, microbatch, ticks))
    for array, value, words in (("microbatch", 6, "names microbatch 6"), ("chunk", 1, "names chunk 1")):
        wrong = schedule("1f1b", 4, 6)
        getattr(wrong, array)[0, F, 0] = value
        with pytest.raises(InputError, match=words):
            check_table(wrong)
    twice = schedule("1f1b", 4, 6)
    twice.microbatch[1, F, 0] = 0
    with pytest.raises(InputError, match="stands 2 times"):
        check_table(twice)
    split = schedule("zb_h1", 4, 6)
    split.microbatch[schedule("zb_h1", 4, 6).when[W, 2, 3], W, 2] = -1  # (a table keeps its `when`)
    with pytest.raises(InputError, match="W of microbatch 3 on stage 2 is missing"):
        check_table(split)
