"""The step's numbers against plain float64 arithmetic: what is logged, what is skipped, what evaluation sums."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.io.loader import Batches, evaluation_batches
from meshtrain.io.rows import IntArray, Rows, padding_rows
from meshtrain.layout import single_placement
from meshtrain.model import hidden_states, initialize, loss_sums
from meshtrain.model.config import ModelConfig
from meshtrain.run.proof.rows import ProofRows
from meshtrain.step import (
    OptimizerConfig,
    Precision,
    StepConfig,
    initial_state,
    make_eval_step,
    make_train_step,
    state_specs,
)
from meshtrain.step.state import TrainState
from tests.run.proofs import BATCH, LENGTH, MODELS, check_equal, place_on, proof_of

TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
MIXED = dict(mesh=dict(data=2, tensor=2), rules=TENSOR, params=dict(embed="data"), accumulate=2)
Z_LOSS = 1e-2


def one_batch(place: Any, model: ModelConfig) -> dict[str, jax.Array]:
    with Batches(ProofRows(model.vocab, LENGTH), place, global_batch=BATCH, stop_step=1, num_threads=1) as batches:
        return next(batches)


def logits_of(params: Any, model: ModelConfig, batch: dict[str, jax.Array]) -> np.ndarray:
    """float64 logits from the float32 hidden states."""
    x = np.asarray(hidden_states(params, model, batch, single_placement()), np.float64)
    table = np.asarray(params["embedding" if model.tied else "output"]["table"], np.float64)
    return np.asarray(x @ table.T)


def test_the_logged_loss_is_the_token_weighted_mean() -> None:
    """Cases N10 and N7 (whole path): loss = ce + z over all counted tokens, both parts logged apart, mixed layout."""
    model = MODELS["llama"]
    params = initialize(model, jax.random.key(0))
    batch = one_batch(single_placement(), model)
    logits, labels = logits_of(params, model, batch), np.asarray(batch["labels"])
    largest = logits.max(-1, keepdims=True)
    lse = (largest + np.log(np.exp(logits - largest).sum(-1, keepdims=True)))[..., 0]
    picked = np.take_along_axis(logits, np.maximum(labels, 0)[..., None], -1)[..., 0]
    counted = labels >= 0
    ce, z = (lse - picked)[counted].mean(), Z_LOSS * (lse**2)[counted].mean()

    place = place_on(4, MIXED)
    config = StepConfig(model, OptimizerConfig(), z_loss=Z_LOSS, seed=0)
    state = initial_state(model, config.optimizer, 0, place)
    state, metrics = make_train_step(config, place)(state, one_batch(place, model), np.float32(1e-3))
    assert float(metrics["num_tokens"]) == counted.sum()
    assert float(metrics["ce"]) == pytest.approx(ce, rel=1e-6)
    assert float(metrics["z_loss"]) == pytest.approx(z, rel=1e-6)
    assert float(metrics["loss"]) == pytest.approx(ce + z, rel=1e-6)
    assert int(state.step) == 1


def test_the_gradient_of_the_logits_is_the_formula() -> None:
    """Case N7: softmax - onehot + 2 z LSE softmax, through the output table of the whole model, to 1e-6."""
    model = MODELS["gpt"]
    params = initialize(model, jax.random.key(0))
    place = single_placement()
    batch = one_batch(place, model)
    x = np.asarray(hidden_states(params, model, batch, place), np.float64)
    logits, labels = logits_of(params, model, batch), np.asarray(batch["labels"])
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    softmax = exp / exp.sum(-1, keepdims=True)
    lse = logits.max(-1) + np.log(exp.sum(-1))
    onehot = np.eye(model.vocab)[np.maximum(labels, 0)]
    dlogits = (softmax * (1 + 2 * Z_LOSS * lse[..., None]) - onehot) * (labels >= 0)[..., None]
    expected = np.einsum("btv,btd->vd", dlogits, x)

    def loss(table: jax.Array) -> jax.Array:
        changed = {**params, "output": {"table": table}}
        return loss_sums(changed, model, batch, place, z_loss=Z_LOSS).loss_sum

    found = np.asarray(jax.jit(jax.grad(loss))(params["output"]["table"]), np.float64)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_a_batch_without_a_counted_token_changes_nothing_and_says_so() -> None:
    """Case N5, the third: the state stays bit by bit but for the step's number; the step is counted as skipped."""
    model = MODELS["llama"]
    place = place_on(4, MIXED)
    config = StepConfig(model, OptimizerConfig())
    state = initial_state(model, config.optimizer, 0, place)
    before = jax.device_get((state.params, state.opt_state))
    batch = one_batch(place, model)
    batch["labels"] = jnp.full_like(batch["labels"], -1)
    state, metrics = make_train_step(config, place)(state, batch, np.float32(1.0))
    after = jax.device_get((state.params, state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, after, before)
    assert (int(state.step), int(state.num_skipped)) == (1, 1)
    assert {name: float(metrics[name]) for name in ("loss", "num_tokens", "skipped", "grad_norm")} == {
        "loss": 0, "num_tokens": 0, "skipped": 1, "grad_norm": 0,
    }  # fmt: skip


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = MODELS["llama"]
    place = single_placement()
    config = StepConfig(model, OptimizerConfig())
    state = initial_state(model, config.optimizer, 0, place)
    state.params["final_norm"]["scale"] = jnp.full_like(state.params["final_norm"]["scale"], jnp.inf)
    before = jax.device_get((state.params, state.opt_state))
    state, metrics = make_train_step(config, place)(state, one_batch(place, model), np.float32(1.0))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get((state.params, state.opt_state)), before)
    assert float(metrics["skipped"]) == 1


class Same(ProofRows):
    """Every row is the same one; only its sample id differs."""

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        return super().rows(np.zeros_like(index))


def test_dropout_differs_between_rows_and_not_between_layouts() -> None:
    """Case N4: identical rows have masks of their own; the same sample has the same mask in another microbatch, in
    another place, and again at the same step (after a resume), but not at another step."""
    model = MODELS["gemma"]
    params = initialize(model, jax.random.key(0))
    place = single_placement()
    with Batches(Same(model.vocab, LENGTH), place, global_batch=4, stop_step=1, num_threads=1) as batches:
        batch = next(batches)

    @jax.jit
    def states(batch: dict[str, jax.Array], step: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(0), step)
        return hidden_states(params, model, batch, place, dropout_key=key)

    x = np.asarray(states(batch, 5))
    for i in range(4):
        for j in range(i):
            assert not np.allclose(x[i], x[j])
    np.testing.assert_array_equal(x, states(batch, 5))
    assert not np.allclose(x, states(batch, 6))
    turned = {name: values[::-1] for name, values in batch.items()}
    np.testing.assert_allclose(states(turned, 5), x[::-1], rtol=1e-5, atol=1e-5)


class Last(ProofRows):
    """Only the last quarter of the tokens of some rows counts: a mean of means shows (an even mask hides it)."""

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        rows = super().rows(np.asarray(index) * 4 + 1)  # the kind that counts its last quarter alone
        rows["labels"][np.asarray(index) % 3 == 0] = -1
        return rows


@pytest.mark.slow
@pytest.mark.parametrize("layout", [dict(data=8), dict(data=4, other=2), dict(data=2, other=4)], ids=str)
def test_an_uneven_mask_over_data_and_length(layout: dict[str, int]) -> None:
    """Case N2: data 8, data 4 x context 2, data 2 x context 4, the last quarter of the tokens counted."""
    from dataclasses import replace

    from meshtrain.run.proof import make_proof

    proof = proof_of("llama")
    case = replace(proof.case, source=Last(MODELS["llama"].vocab, LENGTH))
    declared: dict[str, Any] = dict(mesh=layout, rules=dict(batch="data"))
    if "other" in layout:
        declared = dict(
            declared, rules=dict(batch="data", length="other"), activations=dict(stream="other"), attention="gather"
        )
    check_equal(make_proof(proof.shrunk, case, single_placement(), "one device"), declared)


class Uneven:
    """37 rows for an evaluation, and padding after them, as every finite source has."""

    num_rows, length = 37, LENGTH

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        rows = ProofRows(MODELS["llama"].vocab, LENGTH).rows(index)
        padding = padding_rows(len(index), LENGTH)
        there = (np.asarray(index) < self.num_rows)[:, None]
        return {name: np.where(there, rows[name], padding[name]) for name in rows}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "num_devices"),
    [
        (dict(mesh=dict(data=1)), 1),
        (dict(mesh=dict(data=2), rules=dict(batch="data")), 2),
        (dict(MIXED, accumulate=1), 4),
    ],
    ids=str,
)
def test_evaluation_does_not_depend_on_batches_or_devices(layout: dict[str, Any], num_devices: int) -> None:
    """Case N6: 37 uneven sequences at batch 2, 4, 16: the same token count (EQ) and loss (CLOSE)."""
    model = MODELS["llama"]
    params = initialize(model, jax.random.key(0))
    rows = Uneven()
    whole = {name: jnp.asarray(values) for name, values in rows.rows(np.arange(37)).items()}
    whole["index_B"] = jnp.arange(37, dtype=jnp.uint32)
    expected = loss_sums(params, model, whole, single_placement())

    place = place_on(num_devices, layout)
    config = StepConfig(model)
    step = make_eval_step(config, place)
    masters = initial_state(model, config.optimizer, 0, place).params
    for batch_size in (2, 4, 16):
        total = np.zeros(2)
        with evaluation_batches(rows, place, global_batch=batch_size, num_threads=1) as batches:
            for batch in batches:
                sums = step(masters, batch)
                total += [float(sums.loss_sum), float(sums.num_tokens)]
        assert total[1] == float(expected.num_tokens)
        assert total[0] == pytest.approx(float(expected.loss_sum), rel=1e-5)


@pytest.mark.slow
def test_bf16_moves_norm_scales_as_float32_does() -> None:
    """Case N9: 100 steps at 6e-4. With float32 masters the scales move alike, to a few percent; in bf16 masters, whose
    steps at 1 are 0.0078, every update of a scale would be lost."""
    model = ModelConfig(2, 32, 4, 2, 8, 64, 61, LENGTH, init_std=0.1)
    place = single_placement()
    moved = {}
    for compute in ("float32", "bfloat16"):
        config = StepConfig(model, OptimizerConfig(), Precision(compute))
        state = initial_state(model, config.optimizer, 0, place)
        assert {np.dtype(x.dtype) for x in jax.tree.leaves((state.params, state.opt_state)) if x.ndim} == {
            np.dtype("float32")
        }
        step = make_train_step(config, place)
        with Batches(ProofRows(model.vocab, LENGTH), place, global_batch=8, stop_step=100, num_threads=1) as batches:
            for batch in batches:
                state, _ = step(state, batch, np.float32(6e-4))
        scales = jax.tree.leaves({k: v for k, v in state.params["layers"].items() if "norm" in k})
        moved[compute] = np.concatenate([np.ravel(x) - 1 for x in scales])
    assert np.abs(moved["float32"]).max() > 0.01
    error = np.linalg.norm(moved["bfloat16"] - moved["float32"]) / np.linalg.norm(moved["float32"])
    assert error < 0.05


def test_the_copy_that_computes_has_the_declared_dtype() -> None:
    model = MODELS["llama"]
    specs = state_specs(model, OptimizerConfig())
    assert isinstance(specs, TrainState)
    copy = Precision("bfloat16").compute_copy(initialize(model, jax.random.key(0)), specs.params, single_placement())
    assert {np.dtype(x.dtype) for x in jax.tree.leaves(copy)} == {np.dtype(jnp.bfloat16)}
