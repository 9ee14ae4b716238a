"""The executor against a plain loop on one device, with a small model: every schedule, stages 1 to 8."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from meshtrain.layout import Layout, Placement, place
from meshtrain.parallel.pipeline import worker
from meshtrain.parallel.pipeline.executor import forward_sums, gradients
from meshtrain.parallel.pipeline.plan import Plan, make_plan
from meshtrain.parallel.pipeline.schedule import schedule
from meshtrain.parallel.pipeline.table import IDLE
from meshtrain.parallel.pipeline.timing import forward_only, lock_step
from tests.parallel.pipeline import toy
from tests.quick import QUICK

# Of an array's largest value: float32 sums of a few hundred terms, in another order: 300 * 2**-24 = 1.8e-5.
TOLERANCE = 2e-5


def placed(num_stages: int) -> Placement:
    """Stages times batch shards on all 8 devices; the axes have odd names, since names mean nothing."""
    layout = Layout.parse(
        dict(
            mesh=dict(q=min(2, 8 // num_stages), depth=num_stages, z=-1), rules=dict(layers="depth", batch="q"),
            pipeline={},
        )
    )  # fmt: skip
    return place(layout)


def physical_order(p: int, v: int, per_piece: int) -> np.ndarray:
    """Layer ids [stage, chunk, layer]: piece k = chunk * p + stage has layers k * per_piece and on."""
    return (np.arange(v)[None, :, None] * p + np.arange(p)[:, None, None]) * per_piece + np.arange(per_piece)


def run(plan: Plan, num_layers: int, num_microbatches: int) -> tuple:
    """(what the executor computes, what one device computes), both in logical order."""
    p, v = plan.num_stages, plan.num_chunks
    ids = physical_order(p, v, num_layers // (p * v))
    layers, rest = toy.weights(num_layers)
    batch = toy.batch(num_microbatches, 4)
    here = placed(p)

    def function(layers: toy.Weights, rest: toy.Weights) -> tuple:
        return gradients(toy.STAGES, layers, rest, batch, plan, here, ids)

    arguments = {"w": layers["w"][ids.ravel()]}, rest
    sums, of_layers, of_rest = jax.jit(function).lower(*arguments).compile(compiler_options=QUICK)(*arguments)
    logical = {"w": np.asarray(of_layers["w"])[np.argsort(ids.ravel())]}
    return (sums, logical, of_rest), toy.plain(layers, rest, batch)


def assert_equal(found: tuple, expected: tuple) -> None:
    def close(a: jax.Array, b: jax.Array) -> None:
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * np.abs(b).max())

    jax.tree.map(close, found, expected)


FAST = [("1f1b", 4, 6, 1), ("interleaved", 2, 5, 2), ("zb_h1", 4, 6, 1)]
SLOW = [
    ("gpipe", 2, 4, 1), ("gpipe", 4, 6, 1), ("1f1b", 1, 3, 1), ("1f1b", 2, 1, 1), ("1f1b", 4, 2, 1), ("1f1b", 8, 9, 1),
    ("interleaved", 2, 4, 2), ("interleaved", 4, 8, 2), ("interleaved", 4, 3, 2), ("interleaved", 1, 2, 4),
    ("zb_h1", 1, 2, 1), ("zb_h1", 2, 3, 1), ("zb_h1", 8, 5, 1),
]  # fmt: skip
KEPT = [("gpipe", 2, 4, 1), ("1f1b", 1, 3, 1), ("1f1b", 8, 9, 1), ("interleaved", 4, 3, 2), ("zb_h1", 4, 6, 1)]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_equals_one_device(name: str, p: int, m: int, v: int) -> None:
    plan = make_plan(lock_step(schedule(name, p, m, v)))
    assert_equal(*run(plan, 8 if p * v <= 8 else 16, m))


@pytest.mark.parametrize(("name", "p", "m", "v"), [FAST[0], *(pytest.param(*c, marks=pytest.mark.slow) for c in KEPT)])
def test_from_residuals_it_equals_one_device(name: str, p: int, m: int, v: int) -> None:
    plan = make_plan(lock_step(schedule(name, p, m, v)), keeps=True)
    assert_equal(*run(plan, 8, m))


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [False, True])
def test_an_asynchronous_table_runs_as_it_is(keeps: bool) -> None:
    """Its ticks have changing kinds, so the scan asks at each tick."""
    assert_equal(*run(make_plan(schedule("1f1b", 4, 5), keeps), 8, 5))


def mutated(name: str, keeps: bool = False, **changes: Any) -> Plan:
    plan = make_plan(lock_step(schedule(name, 4, 6)), keeps)
    return replace(plan, **{array: change(getattr(plan, array).copy()) for array, change in changes.items()})


def swapped(values: np.ndarray) -> np.ndarray:
    """Microbatches 1 and 2 in each other's place on one stage."""
    one, two = (np.flatnonzero(values[:, 1] == microbatch) for microbatch in (1, 2))
    values[one, 1], values[two, 1] = 2, 1
    return values


def dropped(values: np.ndarray) -> np.ndarray:
    values[np.flatnonzero(values[:, 2] == 3), 2] = IDLE
    return values


def early(values: np.ndarray) -> np.ndarray:
    """Every arrival on stage 1 that waits is written over by the next one."""
    values[values[:, 1] != IDLE, 1] = 0
    return values


MUTATIONS = {
    "a microbatch swapped": mutated("1f1b", b_microbatch=swapped),
    "the weight gradients of a microbatch dropped": mutated("zb_h1", w_microbatch=dropped),
    "a buffer overwritten too early": mutated("1f1b", x_arrival=early, b_x=early, f_x=early),
    "residuals of another microbatch": mutated(
        "1f1b", keeps=True, b_kept=lambda values: np.where(values == 1, 2, values)
    ),
    "another output for the loss": mutated("gpipe", keeps=True, b_y=lambda values: np.where(values == 1, 2, values)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_show(name: str) -> None:
    with pytest.raises(AssertionError):
        assert_equal(*run(MUTATIONS[name], 8, 6))


def test_a_gradient_from_the_wrong_stage_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is made on the stage before the last."""
    piece = worker.Worker._piece

    def wrong(self: worker.Worker, at: worker.Batch, op: str) -> worker.Piece:
        right = piece(self, at, op)
        return replace(right, last=at["stage"] == self.plan.num_stages - 2)

    monkeypatch.setattr(worker.Worker, "_piece", wrong)
    with pytest.raises(AssertionError):
        assert_equal(*run(make_plan(lock_step(schedule("1f1b", 4, 6))), 8, 6))


def test_forward_alone() -> None:
    """The sums of every microbatch, and no bubble adds to them; permuted microbatches permute the list (case P1)."""
    plan = make_plan(forward_only(lock_step(schedule("interleaved", 2, 5, 2))))
    ids = physical_order(2, 2, 2)
    layers, rest = toy.weights(8)
    batch, here = toy.batch(5, 4), placed(2)
    permutation = np.array([3, 0, 4, 1, 2])

    def function(batch: toy.Batch) -> tuple:
        return forward_sums(toy.STAGES, {"w": layers["w"][ids.ravel()]}, rest, batch, plan, here, ids)

    compiled = jax.jit(function).lower(batch).compile(compiler_options=QUICK)
    expected = toy.plain(layers, rest, batch)[0]
    assert_equal(compiled(batch), expected)
    assert_equal(
        compiled(jax.tree.map(lambda x: x[permutation], batch)), jax.tree.map(lambda x: x[permutation], expected)
    )
