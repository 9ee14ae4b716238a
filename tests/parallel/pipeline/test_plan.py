"""The plan's slots: no more than the table's live inputs, and no message overwritten before its last use."""

from dataclasses import replace

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.plan import check_plan, make_plan
from meshtrain.parallel.pipeline.schedule import schedule
from meshtrain.parallel.pipeline.table import IDLE, F
from meshtrain.parallel.pipeline.timing import forward_only, lock_step

SIZES = [(2, 1, 1), (2, 8, 1), (4, 3, 2), (4, 8, 1), (4, 9, 3), (8, 16, 2), (8, 32, 1)]


@pytest.mark.parametrize(("p", "m", "v"), SIZES)
def test_slots_are_what_the_table_says(p: int, m: int, v: int) -> None:
    """1F1B's buffers do not grow with the number of microbatches; GPipe's do."""
    locked = lock_step(schedule("interleaved", p, m, v))
    plan = make_plan(locked)
    assert plan.num_x <= locked.live.max()
    assert make_plan(lock_step(schedule("gpipe", p, m))).num_x == m
    plain = make_plan(lock_step(schedule("1f1b", p, m)))
    assert plain.num_x == min(2 * p - 3, m)  # the first stage reads tokens, so the second has the most
    assert plain.num_dy == 1
    split = make_plan(lock_step(schedule("zb_h1", p, m)))
    assert split.num_x == plain.num_x
    assert split.num_tape == min(p, m)


def test_an_asynchronous_table_is_a_plan_too() -> None:
    plan = make_plan(schedule("1f1b", 4, 8))
    assert plan.num_x <= 4


def test_forward_alone() -> None:
    plan = make_plan(forward_only(schedule("interleaved", 4, 8, 2)))
    assert (plan.f_microbatch != IDLE).sum() == 8 * 8  # the last piece's F as well: it makes the loss
    assert plan.num_x == 1


def test_the_last_piece_has_no_forward_of_its_own() -> None:
    plan = make_plan(lock_step(schedule("1f1b", 4, 8)))
    assert (plan.f_microbatch[:, 3] == IDLE).all()
    assert plan.kinds[:, F].sum() == 8 + 4 - 2


@pytest.mark.parametrize(("p", "m", "v"), SIZES)
def test_residuals_wait_in_as_many_slots_as_inputs_are_live(p: int, m: int, v: int) -> None:
    """Of an input only what F has not read yet waits then, and of the last piece's outputs none but gpipe's."""
    for name in ("gpipe", "1f1b", "interleaved", "zb_h1"):
        locked = lock_step(schedule(name, p, m, v if name == "interleaved" else 1))
        plan = make_plan(locked, keeps=True)
        until_b = replace(locked, microbatch=locked.microbatch * [[1], [1], [0]] + [[0], [0], [IDLE]])  # without W
        assert plan.num_kept == until_b.live.max()
        if name != "interleaved" or m % p == 0:  # (groups that are not full leave a stage waiting)
            assert plan.num_x == 1
            assert plan.num_y == (m if name == "gpipe" else 1)
        assert (plan.f_microbatch[:, -1] != IDLE).sum() == m * locked.num_chunks  # the last piece has an F, too


@pytest.mark.parametrize("array", ["f_kept", "b_kept", "f_y", "b_y"])
def test_every_slot_of_residuals_matters(array: str) -> None:
    plan = make_plan(lock_step(schedule("gpipe", 4, 8)), keeps=True)
    values = plan.arrays[array]
    for tick, stage in np.argwhere(values != IDLE):
        wrong = values.copy()
        wrong[tick, stage] = values[tick, stage] + 1
        roomy = replace(plan, num_kept=plan.num_kept + 1, num_y=plan.num_y + 1)
        object.__setattr__(roomy, array, wrong)
        with pytest.raises(InputError, match="needs"):
            check_plan(roomy)


@pytest.mark.parametrize("array", ["f_x", "b_x", "x_arrival", "b_dy", "dy_arrival", "b_tape", "w_tape"])
def test_every_slot_number_matters(array: str) -> None:
    """Any one slot number changed is found."""
    plan = make_plan(lock_step(schedule("zb_h1", 4, 8)))
    values = plan.arrays[array]
    for tick, stage in np.argwhere(values != IDLE):
        wrong = values.copy()
        wrong[tick, stage] = IDLE if array.endswith(("dy", "dy_arrival")) else values[tick, stage] + 1
        roomy = replace(plan, num_x=plan.num_x + 1, num_tape=plan.num_tape + 1)
        object.__setattr__(roomy, array, wrong)
        with pytest.raises(InputError, match="needs"):
            check_plan(roomy)


def test_a_slot_overwritten_one_tick_early_is_found() -> None:
    plan = make_plan(lock_step(schedule("1f1b", 4, 8)))
    stage, early = 1, plan.x_arrival.copy()
    tick = np.flatnonzero(plan.b_x[:, stage] != IDLE)[0]
    assert plan.x_arrival[tick + 1, stage] == plan.b_x[tick, stage]  # freed, and filled in the next tick
    early[tick, stage] = plan.b_x[tick, stage]
    with pytest.raises(InputError, match=f"at tick {tick} stage {stage} needs x"):
        check_plan(replace(plan, x_arrival=early))
