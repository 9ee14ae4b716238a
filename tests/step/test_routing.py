"""Routers over whole steps under layouts: collapse, ties, idle experts, padding, drops, the bias without a gradient.

Cases M1, M2 and M3. Every layout's step is compiled once and then fed with one scenario after the other. CLOSE as the
cases say: losses within 1e-5, gradients within 1e-4 of their largest entry; counts, and biases that follow them, equal.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest

from meshtrain.layout import Placement, named_specs
from meshtrain.layout.padding import pad_tree, strip_tree
from meshtrain.model import ModelConfig, MoEConfig
from meshtrain.model.losses import router_sums
from meshtrain.run.proof.outcome import light_options
from meshtrain.run.proof.rows import ProofRows
from meshtrain.step import OptimizerConfig, StepConfig, TrainState, initial_state, make_train_step, state_specs
from meshtrain.step.state import state_shardings
from tests.run.proofs import place_on

pytestmark = pytest.mark.slow

ROWS, LENGTH, VOCAB, STEPS, RATE = 8, 16, 29, 3, 0.02
MOE = MoEConfig(
    8, 2, 12, "sigmoid", num_groups=4, top_groups=2, bias=True, bias_rate=0.01, balance_loss=0.1, z_loss=0.01
)
CONFIG = StepConfig(
    ModelConfig(2, 16, 4, 2, 4, 24, VOCAB, LENGTH, init_std=0.25, moe=MOE),
    OptimizerConfig("sgd", weight_decay=0.0, clip=None),
)
FULL = dict(dispatch="capacity", capacity_factor=1.0)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": dict(mesh=dict(d=1)),
    "accumulate 4": dict(mesh=dict(d=1), accumulate=4),
    "data 4": dict(mesh=dict(d=4), rules=dict(batch="d")),
    "expert 4": dict(mesh=dict(x=4), rules=dict(batch=None, expert="x")),
    "stages 2": dict(
        mesh=dict(s=2, x=2), rules=dict(batch="x", expert="x", layers="s"),
        pipeline=dict(schedule="1f1b", microbatches=2),
    ),
    "data and expert, zero 3": dict(
        mesh=dict(d=2, x=4), rules=dict(batch=("d", "x"), expert="x"), params=dict(embed=("d", "x"), expert_embed="d"),
    ),
    "data and tensor, accumulate": dict(
        mesh=dict(d=2, t=2), accumulate=2, activations=dict(stream="t"), rules=dict(
            batch="d", heads="t", kv_heads="t", mlp="t", vocab="t", expert=("d", "t"), expert_mlp=None
        ),
    ),
    "one, full": dict(mesh=dict(d=1), experts=FULL),
    "expert 4, full": dict(mesh=dict(x=4), rules=dict(batch="x", expert="x"), experts=FULL),
    "stages 2, full": dict(
        mesh=dict(s=2, x=2), rules=dict(batch="x", expert="x", layers="s"), experts=FULL,
        pipeline=dict(schedule="gpipe", microbatches=1),
    ),
}  # fmt: skip
OTHERS = [name for name in LAYOUTS if not name.startswith("one")]

Batch = dict[str, np.ndarray]


@dataclass(frozen=True)
class Told:
    """What a step tells: numbers, loads by layer, gradients by path."""

    metrics: dict[str, float]
    routers: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]


@cache
def placed(layout: str) -> tuple[Placement, Any]:
    """A layout on its devices and its compiled step, with gradients."""
    declared = LAYOUTS[layout]
    place = place_on(int(np.prod(list(declared["mesh"].values()))), declared)
    step: Any = make_train_step(CONFIG, place, gradients=True)
    state = on_devices(start(), place)
    return place, step.lower(state, rows(), np.float32(RATE)).compile(compiler_options=light_options())


def on_devices(state: TrainState, place: Placement) -> TrainState:
    specs = state_specs(CONFIG.model, CONFIG.optimizer)
    return jax.device_put(pad_tree(state, specs, place), state_shardings(specs, place))


def by_path(tree: Any, place: Placement) -> dict[str, np.ndarray]:
    specs = state_specs(CONFIG.model, CONFIG.optimizer).params
    stripped = strip_tree(jax.device_get(tree), specs, place)
    return dict(zip([path for path, _ in named_specs(specs)], jax.tree.leaves(stripped), strict=True))


def run(layout: str, state: TrainState, batches: list[Batch]) -> tuple[list[Told], dict[str, np.ndarray]]:
    """(what each step tells, the weights behind the last)."""
    place, step = placed(layout)
    on_mesh, told = on_devices(state, place), []
    for batch in batches:
        on_mesh, found = step(on_mesh, batch, np.float32(RATE))
        gradients, routers = by_path(found.pop("gradients"), place), jax.device_get(found.pop("routers"))
        told.append(Told({name: float(value) for name, value in found.items()}, routers, gradients))
    return told, by_path(on_mesh.params, place)


@cache
def start() -> TrainState:
    """Weights as they are drawn, but for biases of the routers that are not 0."""
    place = place_on(1, LAYOUTS["one"])
    state = jax.device_get(initial_state(CONFIG.model, CONFIG.optimizer, 0, place))
    return with_router(state, None, np.linspace(-0.02, 0.03, MOE.num_experts))


def with_router(state: TrainState, weight: float | None, bias: np.ndarray) -> TrainState:
    """The state with other biases, and all of the routers' weights equal where a number is given."""
    layers = state.params["layers"]
    router = layers["moe"]["router"]
    router = {
        "weight": router["weight"] if weight is None else np.full_like(router["weight"], weight),
        "bias": np.broadcast_to(bias, router["bias"].shape).astype(np.float32),
    }
    return replace(state, params={**state.params, "layers": {**layers, "moe": {**layers["moe"], "router": router}}})


def rows(first: int = 0) -> Batch:
    """Packed documents, some padding, an uneven loss mask."""
    index = np.arange(first, first + ROWS)
    return {**ProofRows(VOCAB, LENGTH).rows(index), "index_B": index.astype(np.int32)}


def padded(batch: Batch, padding: np.ndarray) -> Batch:
    """The batch with padding where the mask says so."""
    changed = {"segments": 0, "labels": -1, "positions": 0}
    return {name: np.where(padding, changed[name], x) if name in changed else x for name, x in batch.items()}


def all_but(kept: int) -> np.ndarray:
    return np.broadcast_to(np.arange(LENGTH) >= kept, (ROWS, LENGTH))


def of_rows(*numbers: int) -> np.ndarray:
    """All of these rows: the first shard's (0, 1), the first microbatch's (0, 4)."""
    return np.isin(np.arange(ROWS), numbers)[:, None].repeat(LENGTH, axis=1)


SCENARIOS: dict[str, Callable[[], tuple[TrainState, list[Batch]]]] = {
    "three steps": lambda: (start(), [rows(ROWS * step) for step in range(STEPS)]),
    "a quarter is padding": lambda: (start(), [padded(rows(), all_but(12))] * STEPS),
    "a shard and a microbatch without a token": lambda: (start(), [padded(rows(), of_rows(0, 1, 4))] * STEPS),
    # Of equal scores the lower expert, of equal groups the lower group. (Behind that step only rounding would choose.)
    "exact ties": lambda: (with_router(start(), 0.0, np.zeros(8)), [rows()]),
    "two of eight win all": lambda: (with_router(start(), 0.0, np.array([0, 0, 0, 0, 0, 4, 0, 8])), [rows()] * STEPS),
}


@pytest.mark.parametrize("layout", OTHERS)
def test_each_scenario_is_that_of_one_device(layout: str) -> None:
    for name, scenario in SCENARIOS.items():
        state, batches = scenario()
        wanted, weights = run("one, full" if layout.endswith("full") else "one", state, batches)
        told, found = run(layout, state, batches)
        for step, (a, b) in enumerate(zip(told, wanted, strict=True), 1):
            check_alike(a, b, f"{name}, step {step}")
        for path, weight in weights.items():  # what moved by the gradient is close, biases moved by counts alone
            limit = 0 if path.endswith("router/bias") else 1e-4 * RATE * STEPS * max(np.abs(weight).max(), 1)
            np.testing.assert_allclose(found[path], weight, rtol=0, atol=limit, err_msg=f"{name}: {path}")


def check_alike(told: Told, wanted: Told, where: str) -> None:
    for name in ("loss", "balance_loss", "router_z_loss", "grad_norm"):
        assert told.metrics[name] == pytest.approx(wanted.metrics[name], rel=1e-5), f"{where}: {name}"
    for name in ("load", "drop_share"):
        np.testing.assert_allclose(told.routers[name], wanted.routers[name], rtol=1e-6, atol=0, err_msg=where)
    largest = max(np.abs(g).max() for g in wanted.gradients.values())
    for path, expected in wanted.gradients.items():
        found, scale = told.gradients[path], max(np.abs(expected).max(), 0.01 * largest)
        assert np.isfinite(found).all(), f"{where}: {path}"
        assert np.abs(found - expected).max() <= 1e-4 * scale, f"{where}: {path}"
        idle = expected == 0  # experts that nobody chose: exactly nothing, in every layout
        if "/experts/" in path:
            np.testing.assert_array_equal(found[idle], 0, err_msg=f"{where}: {path}")
        if np.abs(expected).max() > 0.01 * largest:
            ratio = (found * expected).sum(dtype=np.float64) / np.square(expected).sum(dtype=np.float64)
            assert ratio == pytest.approx(1, abs=1e-4), f"{where}: {path} is {ratio} times what it should be"


def test_loads_and_drops_are_those_of_a_count_by_hand() -> None:
    """Case M3. With capacity 1.0 an expert takes its even share of a row, 16 x 2 / 8 = 4 tokens, the first ones."""
    state, batches = SCENARIOS["two of eight win all"]()
    tokens = (batches[0]["segments"] > 0).sum(1)
    for layout, share in (("one", 0.0), ("one, full", 1 - np.minimum(tokens, 4).sum() / tokens.sum())):
        told, weights = run(layout, state, batches)
        for step in told:
            np.testing.assert_array_equal(step.routers["load"], [[0, 0, 0, 0, 0, 0.5, 0, 0.5]] * 2)
            np.testing.assert_allclose(step.routers["drop_share"], share, rtol=1e-6)
            np.testing.assert_allclose(step.routers["max_over_mean"], 4)
        bias = np.array([STEPS * 0.01] * 5 + [4 - STEPS * 0.01, STEPS * 0.01, 8 - STEPS * 0.01])
        np.testing.assert_allclose(weights["layers/moe/router/bias"], [bias] * 2, rtol=1e-6)
        for name in ("gate", "up", "down"):  # with plain SGD an idle expert keeps every bit
            kept = np.asarray(state.params["layers"]["moe"]["experts"][name])[:, [0, 1, 2, 3, 4, 6]]
            np.testing.assert_array_equal(weights[f"layers/moe/experts/{name}"][:, [0, 1, 2, 3, 4, 6]], kept)
    state, batches = SCENARIOS["exact ties"]()
    (told_of_ties,), _ = run("one", state, batches)
    np.testing.assert_array_equal(told_of_ties.routers["load"], [[0.5, 0.5, 0, 0, 0, 0, 0, 0]] * 2)
    assert told_of_ties.metrics["balance_loss"] == pytest.approx(2 * 0.1, rel=1e-6)  # two layers' uniform scores
    assert told_of_ties.metrics["router_z_loss"] == pytest.approx(2 * 0.01 * np.log(8) ** 2, rel=1e-5)


@pytest.mark.parametrize("layout", OTHERS)
def test_what_padding_holds_changes_no_bit(layout: str) -> None:
    batch = padded(rows(), all_but(12))
    other = {**batch, "tokens": np.where(batch["segments"] == 0, (batch["tokens"] + 7) % VOCAB, batch["tokens"])}
    assert (other["tokens"] != batch["tokens"]).any()
    (told,), weights = run(layout, start(), [batch])
    (same,), same_weights = run(layout, start(), [other])
    jax.tree.map(np.testing.assert_array_equal, (told.metrics, told.routers), (same.metrics, same.routers))
    jax.tree.map(np.testing.assert_array_equal, weights, same_weights)


@pytest.mark.parametrize("layout", OTHERS)
def test_a_step_that_is_skipped_moves_no_bias(layout: str) -> None:
    """Without any counted token, and with a loss that is no number: all weights keep every bit."""
    broken = replace(start(), params={**start().params, "final_norm": {"scale": np.full(16, np.nan, np.float32)}})
    nothing = {**rows(), "labels": np.full((ROWS, LENGTH), -1, np.int32)}
    for state, batch in ((start(), nothing), (start(), padded(rows(), all_but(0))), (broken, rows())):
        (told,), weights = run(layout, state, [batch])
        assert told.metrics["skipped"] == 1
        for before, after in zip(jax.tree.leaves(state.params), weights.values(), strict=True):
            np.testing.assert_array_equal(after, before)


def test_a_local_statistic_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the balance loss of what one microbatch holds. The load and the bias would still be right."""
    moe = import_module("meshtrain.model.moe")
    monkeypatch.setattr(moe, "router_sums", lambda c, n, d, load, m: router_sums(c, n, d, None, m))
    placed.cache_clear()
    jax.clear_caches()
    try:
        (told,), _ = run("accumulate 4", start(), [rows()])
    finally:
        placed.cache_clear()
    (wanted,), _ = run("one", start(), [rows()])
    with pytest.raises(AssertionError, match="local: "):
        check_alike(told, wanted, "local")
    np.testing.assert_allclose(told.routers["load"], wanted.routers["load"], rtol=1e-6)
