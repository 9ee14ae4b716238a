"""The decoder against a float64 one in numpy, for each family: states, loss and gradients; and who sees whom."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import path_name, single_placement
from meshtrain.model import ModelConfig, hidden_states
from tests.model import reference
from tests.model.families import FAMILIES, GEMMA2, GPT2, LLAMA, MISTRAL, make_batch, make_params
from tests.model.steps import run, training_function
from tests.quick import QUICK

LENGTH = 12
DOCUMENTS = [[12], [5, 7], [4, 3, 2]]  # the third row ends in padding


def other_token(batch: dict[str, jax.Array], row: int, place: int) -> dict[str, jax.Array]:
    tokens = batch["tokens"]
    return {**batch, "tokens": tokens.at[row, place].set((tokens[row, place] + 1) % 29)}


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype), tree)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_states_loss_and_each_gradient_against_float64(config: ModelConfig) -> None:
    params, batch = make_params(config), make_batch(config, DOCUMENTS, LENGTH)
    loss, states, gradients = run(params, config, batch)
    exact, exact_batch = wide(params), wide(batch)
    seen = np.asarray(batch["segments"]) > 0
    # 2 layers x some 60 summands of size 1 a value, each rounded to 6e-8, states of size about 1 to 4
    expected_states = reference.hidden(exact, config, exact_batch)
    np.testing.assert_allclose(states[seen], expected_states[seen], rtol=1e-4, atol=1e-4)
    assert float(loss) == pytest.approx(reference.loss(exact, config, exact_batch), rel=1e-5)

    rng = np.random.default_rng(3)
    leaves, tree = jax.tree_util.tree_flatten_with_path(exact)
    for number, ((path, leaf), found) in enumerate(zip(leaves, jax.tree.leaves(gradients), strict=True)):
        direction = rng.normal(size=leaf.shape)
        step = 1e-5

        def at(move: float, number: int = number, direction: np.ndarray = direction) -> float:
            moved = [x + move * direction if i == number else x for i, (_, x) in enumerate(leaves)]
            return reference.loss(jax.tree_util.tree_unflatten(tree, moved), config, exact_batch)

        expected = (at(step) - at(-step)) / (2 * step)
        gradient = np.asarray(found, np.float64)
        # float32 noise of the sums over tokens, relative to the gradient's length, or to 1 where the sum vanishes
        noise = 1e-4 * max(float(np.linalg.norm(gradient)), 1.0)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-4, abs=noise), path_name(path)
        if path_name(path).endswith("router/bias"):  # what chooses experts is not differentiated
            np.testing.assert_array_equal(gradient, 0)
        elif not (config.positions == "learned" and path_name(path).endswith("key_bias")):  # softmax does not feel it
            assert np.abs(gradient).max() > 1e-3, path_name(path)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_nobody_sees_the_future(config: ModelConfig) -> None:
    params, batch = make_params(config), make_batch(config, DOCUMENTS, LENGTH)
    before = run(params, config, batch)[1][0]
    after = run(params, config, other_token(batch, 0, 6))[1][0]
    np.testing.assert_array_equal(before[:6], after[:6])
    assert (before[6:8] != after[6:8]).any(-1).all()


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize("config", [LLAMA, GEMMA2, GPT2], ids=["llama", "gemma2", "gpt2"])
def test_packed_documents_never_see_each_other(config: ModelConfig, policy: str) -> None:
    """Bitwise: loss and gradients of the second document, whatever a token of the first one is."""
    params, batch = make_params(config), make_batch(config, DOCUMENTS, LENGTH)
    labels = np.full((3, LENGTH), -1, np.int32)
    labels[1, 5:] = batch["labels"][1, 5:]
    second = {**batch, "labels": jnp.asarray(labels)}
    one, two = (run(params, config, given, policy) for given in (second, other_token(second, 1, 2)))
    assert one[0] > 1
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1][1, 5:], two[1][1, 5:])
    jax.tree.map(np.testing.assert_array_equal, one[2], two[2])

    # As one document the same change is felt.
    joined = {**second, "segments": jnp.ones((3, LENGTH), jnp.int32)}
    joined["positions"] = jnp.broadcast_to(jnp.arange(LENGTH, dtype=jnp.int32), (3, LENGTH))
    one, two = (run(params, config, given, policy) for given in (joined, other_token(joined, 1, 2)))
    assert one[0] != two[0]


def test_padding_is_seen_by_nobody_without_segments() -> None:
    """Rows of one document: by positions alone each token would see the padding, which stands at position 0."""
    params, batch = make_params(LLAMA), make_batch(LLAMA, [[12], [7], [1]], LENGTH)
    plain = {name: x for name, x in batch.items() if name != "segments"}
    step = jax.jit(training_function(LLAMA, single_placement()), compiler_options=QUICK)
    (loss, _), gradients = step(params, plain, jax.random.key(0))
    expected = run(params, LLAMA, batch)
    assert float(loss) == pytest.approx(float(expected[0]), rel=1e-6)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, atol=1e-5 * np.abs(e).max()), gradients, expected[2])


def test_packed_gradients_are_the_sum_of_separate_runs() -> None:
    """Rows of one document each, padded, against the same documents packed."""
    params, packed = make_params(LLAMA), make_batch(LLAMA, [[5, 7], [12], [12]], LENGTH)
    separate = {k: np.array(v) for k, v in make_batch(LLAMA, [[5], [7], [12]], LENGTH).items()}
    packed["labels"] = packed["labels"].at[1:].set(-1)
    separate["labels"][2] = -1
    for row, source in ((0, slice(0, 5)), (1, slice(5, 12))):
        for name in ("tokens", "labels"):
            values = np.asarray(packed[name])[0, source]
            separate[name][row, : len(values)] = values
    one, two = run(params, LLAMA, packed), run(params, LLAMA, jax.tree.map(jnp.asarray, separate))
    assert float(one[0]) == pytest.approx(float(two[0]), rel=1e-6)
    for a, b in zip(jax.tree.leaves(one[2]), jax.tree.leaves(two[2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * float(np.abs(b).max()))


def test_a_window_reaches_through_as_many_layers_as_have_it() -> None:
    """Window 5 in both of two layers: position 8 is the last to feel position 0. In one of two layers: all feel it."""
    for config, reach in ((MISTRAL, 9), (GEMMA2, LENGTH)):
        params, batch = make_params(config), make_batch(config, DOCUMENTS, LENGTH)
        moved = (run(params, config, batch)[1] != run(params, config, other_token(batch, 0, 0))[1])[0].any(-1)
        np.testing.assert_array_equal(moved, np.arange(LENGTH) < reach)


def test_bf16_weights_compute_in_bf16_close_to_float32() -> None:
    params, batch = make_params(LLAMA), make_batch(LLAMA, DOCUMENTS, LENGTH)
    half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), params)
    step = jax.jit(training_function(LLAMA, single_placement()), compiler_options=QUICK)
    (loss, states), gradients = step(half, batch, jax.random.key(0))
    assert states.dtype == jnp.bfloat16
    assert {g.dtype for g in jax.tree.leaves(gradients)} == {jnp.dtype(jnp.bfloat16)}
    assert loss.dtype == jnp.float32
    assert float(loss) == pytest.approx(reference.loss(wide(params), LLAMA, wide(batch)), rel=0.02)


def test_rows_longer_than_the_learned_positions_are_an_error() -> None:
    params, batch = make_params(GPT2), make_batch(GPT2, [[33]], 33)
    with pytest.raises(InputError, match=r"model\.max_length: sequences of 33 tokens .* 32 learned positions"):
        jax.eval_shape(lambda p, b: hidden_states(p, GPT2, b, single_placement()), params, batch)
