"""Remat policies: the same numbers from less memory, and no policy keeps a gathered or a joined weight."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from meshtrain.model import ModelConfig, loss_sums
from meshtrain.model.remat import DOTS
from tests.model.families import GEMMA2, GPT2, LLAMA, SIZES, make_batch, make_params
from tests.model.steps import QUICK, remat, states_and_gradients

POLICIES = ("none", "dots", "names", "full")
DEPTHS = (4, 16)
ROWS, LENGTH, EMBED = 4, 128, 64


@pytest.mark.parametrize(
    "config", [LLAMA, GEMMA2, dataclasses.replace(GPT2, dropout=0.2)], ids=["llama", "gemma2", "gpt2 with dropout"]
)
def test_policies_give_the_same_loss_and_gradients(config: ModelConfig) -> None:
    params, batch = make_params(config), make_batch(config, [[12], [5, 7], [4, 3, 2]], 12)
    key = jax.random.key(4)
    found = {p: states_and_gradients(config, p, config.dropout > 0)(params, batch, key) for p in POLICIES}
    scale = max(float(np.abs(g).max()) for g in jax.tree.leaves(found["none"][1]))
    for policy in POLICIES[1:]:
        (loss, states), gradients = found[policy]
        np.testing.assert_array_equal(states, found["none"][0][1])  # the forward pass is the same program
        np.testing.assert_allclose(loss, found["none"][0][0], rtol=1e-6)
        for one, two in zip(jax.tree.leaves(found["none"][1]), jax.tree.leaves(gradients), strict=True):
            # the same operations on the same numbers, fused otherwise: some float32 units of the largest gradient
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6 * scale)


@functools.cache
def temporary_bytes(num_layers: int, policy: str) -> int:
    config = ModelConfig(
        **{**SIZES, "num_layers": num_layers, "embed": EMBED, "head_dim": 16, "mlp": 176, "max_length": LENGTH}
    )
    params, batch = make_params(config), make_batch(config, [[LENGTH]] * ROWS, LENGTH)
    gradient = jax.grad(lambda p, b: loss_sums(p, config, b, remat(policy)).loss_sum)
    step = jax.jit(gradient).lower(params, batch).compile(compiler_options=QUICK)
    memory = step.memory_analysis()
    assert memory is not None
    return memory.temp_size_in_bytes


@pytest.mark.parametrize("num_layers", DEPTHS)
def test_each_policy_needs_less_memory_than_the_one_before(num_layers: int) -> None:
    sizes = [temporary_bytes(num_layers, policy) for policy in POLICIES]
    assert sizes == sorted(set(sizes), reverse=True)


def test_full_adds_about_one_layer_input_per_layer() -> None:
    layer_input = 4 * ROWS * LENGTH * EMBED
    slope = (temporary_bytes(16, "full") - temporary_bytes(4, "full")) / 12
    assert layer_input <= slope < 1.2 * layer_input


def test_none_keeps_what_the_layers_ask_for_and_no_more() -> None:
    """Per layer and token: x, the two normed inputs, q, k, v, attention's output (and its normaliser), the stream in
    the middle, gate, up and hidden layer. A joined copy of the weights would show as 4 more floats of each."""
    heads, kv_heads, head_dim, mlp = 4, 2, 16, 176
    floats = 4 * EMBED + 2 * (heads + kv_heads) * head_dim + heads + 3 * mlp
    slope = (temporary_bytes(16, "none") - temporary_bytes(4, "none")) / 12
    assert 4 * ROWS * LENGTH * floats == pytest.approx(slope, rel=0.03)


def test_the_names_that_dots_keeps_are_set() -> None:
    """A misspelt name would silently keep nothing."""
    batch = make_batch(LLAMA, [[12]], 12)
    gradient = jax.grad(lambda p: loss_sums(p, LLAMA, batch, remat("none")).loss_sum)
    text = str(jax.make_jaxpr(gradient)(make_params(LLAMA)))
    for name in DOTS:
        assert f"name[name={name}]" in text, name
