"""Remat policies: the same numbers from less memory, and no policy keeps a gathered or a joined weight."""

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from meshtrain.layout import Layout, Placement, map_specs, place
from meshtrain.model import ModelConfig, attention, describe, mlp
from meshtrain.model.remat import DOTS
from tests.model.families import GEMMA2, GPT2, LLAMA, SIZES, make_batch, make_params
from tests.model.steps import compiled, run, training_function

POLICIES = ("none", "dots", "names", "full")
ROWS, LENGTH, EMBED = 4, 128, 64
WIDE, DEEP = (
    ModelConfig(**{**SIZES, "num_layers": n, "embed": EMBED, "head_dim": 16, "mlp": 176, "max_length": LENGTH})
    for n in (4, 16)
)


def assert_close(one: Any, two: Any) -> None:
    """The same operations on the same numbers, fused otherwise: some float32 units of the largest gradient."""
    np.testing.assert_array_equal(one[1], two[1])  # the forward pass is the same program
    np.testing.assert_allclose(one[0], two[0], rtol=1e-6)
    scale = max(float(np.abs(g).max()) for g in jax.tree.leaves(one[2]))
    for a, b in zip(jax.tree.leaves(one[2]), jax.tree.leaves(two[2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6 * scale)


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_policies_give_the_same_loss_and_gradients(policy: str) -> None:
    params, batch = make_params(WIDE), make_batch(WIDE, [[128], [50, 78], [60, 60], [1, 127]], LENGTH)
    params = jax.tree.map(lambda w: w * 0.3, params)  # states of size 1 in a wider model
    assert_close(run(params, WIDE, batch), run(params, WIDE, batch, policy))


@pytest.mark.parametrize(
    ("config", "policies"),
    [(GEMMA2, ("names", "full")), (dataclasses.replace(GPT2, dropout=0.2), ("dots", "full"))],
    ids=["gemma2", "gpt2 with dropout"],
)
def test_they_do_with_windows_by_layer_and_with_dropout(config: ModelConfig, policies: tuple[str, ...]) -> None:
    params, batch = make_params(config), make_batch(config, [[12], [5, 7], [4, 3, 2]], 12)
    key = jax.random.key(4) if config.dropout else None
    for policy in policies:
        assert_close(run(params, config, batch, "none", key), run(params, config, batch, policy, key))


def temporary_bytes(config: ModelConfig, policy: str) -> int:
    memory = compiled(config, ROWS, LENGTH, policy).memory_analysis()
    return memory.temp_size_in_bytes


def test_each_policy_needs_less_memory_than_the_one_before() -> None:
    sizes = [temporary_bytes(WIDE, policy) for policy in POLICIES]
    assert sizes == sorted(set(sizes), reverse=True)


def test_full_adds_about_one_layer_input_per_layer() -> None:
    layer_input = 4 * ROWS * LENGTH * EMBED
    slope = (temporary_bytes(DEEP, "full") - temporary_bytes(WIDE, "full")) / 12
    assert layer_input <= slope < 1.2 * layer_input


def test_none_keeps_what_the_layers_ask_for_and_no_more() -> None:
    """Per layer and token: x, the two normed inputs, q, k, v, attention's output (and its normaliser), the stream in
    the middle, gate, up and hidden layer. A joined copy of the weights would show as one more of each."""
    heads, kv_heads, head_dim, mlp = 4, 2, 16, 176
    floats = 4 * EMBED + 2 * (heads + kv_heads) * head_dim + heads + 3 * mlp
    slope = (temporary_bytes(DEEP, "none") - temporary_bytes(WIDE, "none")) / 12
    assert slope == pytest.approx(4 * ROWS * LENGTH * floats, rel=0.03)


def test_the_names_that_dots_keeps_are_set() -> None:
    """A misspelt name would silently keep nothing."""
    text = str(traced(LLAMA, place(Layout.parse(dict(mesh=dict(one=1))), 1)))
    for name in set(DOTS) - {"latent", "expanded"}:  # latent attention's, see test_latent.py
        assert f"name[name={name}]" in text, name


def traced(config: ModelConfig, placement: Placement) -> Any:
    batch = make_batch(config, [[8]] * 8, 8)
    return jax.make_jaxpr(training_function(config, placement))(make_params(config), batch, jax.random.key(0))


def loop_outputs(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Shapes that any loop gives back, those stacked for the backward pass among them."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield from (variable.aval.shape for variable in eqn.outvars)
        for inner in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from loop_outputs(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("policy", ["none", "dots"])
def test_zero3_never_keeps_a_gathered_weight(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack of whole weights leaves the loops once per weight, as its gradient; kept ones would add to that."""
    config = ModelConfig(**{**SIZES, "num_layers": 3}, qk_norm=True)
    layout = Layout.parse({**importlib.import_module("configs.layouts.zero3").get_config().to_dict(), "remat": policy})
    weights = [spec.shape for spec in jax.tree.leaves(map_specs(lambda s: s, describe(config)["layers"]), is_leaf=dims)]

    def stacks() -> int:
        # matrices, and the two joins: [layers, embed, kv_heads, group + 2, head_dim], [layers, embed, 2, mlp]
        shapes = {shape for shape in weights if len(shape) > 2} | {(3, 16, 2, 4, 6), (3, 16, 2, 20)}
        return sum(shape in shapes for shape in loop_outputs(traced(config, place(layout))))

    assert stacks() == sum(len(shape) > 2 for shape in weights)

    def careless(equation: str, x: Any, params: Any, place: Placement, join: Any = None) -> jax.Array:
        gathered = [place.at_use(param[...], *param.get_metadata("dims")) for param in params]
        return jax.numpy.einsum(equation, x, gathered[0] if join is None else join(*gathered))

    monkeypatch.setattr(attention, "product", careless)
    monkeypatch.setattr(mlp, "product", careless)
    assert (stacks() > sum(len(shape) > 2 for shape in weights)) == (policy == "none")


def dims(leaf: object) -> bool:
    return hasattr(leaf, "dims")
