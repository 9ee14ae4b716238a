"""The update: what decays (case G2), what Muon takes as a matrix, the dims of every array of the state."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import named_specs
from meshtrain.layout.padding import pad_tree, physical_specs, strip_tree
from meshtrain.model import describe, initialize
from meshtrain.step import OptimizerConfig, state_specs
from meshtrain.step.optimizer import decay_mask, make_optimizer, matrix_dims
from tests.run.proofs import MODELS, place_on

TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": dict(mesh=dict(data=1)),
    "zero1": dict(mesh=dict(data=4), rules=dict(batch="data"), optimizer=dict(embed="data")),
    "tensor_zero3": dict(mesh=dict(data=2, tensor=2), rules=TENSOR, params=dict(embed="data")),
}
EXPERTS: dict[str, dict[str, Any]] = {
    "one": dict(mesh=dict(data=1)),
    "own, zero1": dict(
        mesh=dict(data=2, expert=2), rules=dict(batch=("data", "expert"), expert="expert"),
        optimizer=dict(embed=("data", "expert"), expert_embed="data"),
    ),
    "folded, tensor": dict(
        mesh=dict(data=2, tensor=2), rules=dict(TENSOR, expert=("data", "tensor"), expert_mlp=None),
    ),
    "stages": dict(
        mesh=dict(stage=2, expert=2), rules=dict(batch="expert", expert="expert", layers="stage"),
        pipeline=dict(schedule="1f1b", microbatches=2),
    ),
}  # fmt: skip
# Norm scales and biases are stacked over layers, and a bias of the heads has three dims: rank is no rule.
WHOLE = {"scale", "bias", "query_bias", "key_bias", "value_bias", "output_bias", "up_bias", "gate_bias", "down_bias"}


@pytest.mark.parametrize("model", MODELS)
def test_matrices_decay_and_nothing_else(model: str) -> None:
    specs = describe(MODELS[model])
    for (path, _), decays in zip(named_specs(specs), jax.tree.leaves(decay_mask(specs)), strict=True):
        assert decays == (path.split("/")[-1] not in WHOLE), path


@pytest.mark.parametrize(
    ("model_name", "layout", "name"),
    [
        *(("gpt", layout, name) for name in ("adamw", "muon") for layout in LAYOUTS),
        *(("grouped", layout, "adamw") for layout in EXPERTS),
        ("grouped", "folded, tensor", "muon"),
        ("grouped", "own, zero1", "sgd"),
    ],
)
def test_without_a_gradient_weights_decay_by_the_declared_share(model_name: str, layout: str, name: str) -> None:
    """Case G2: no gradient, decay 0.1, one step: p becomes (1 - 0.1 lr) p for matrices, all else stays bit by bit."""
    model, rate = MODELS[model_name], 0.02
    specs = describe(model)
    declared = (EXPERTS if model_name == "grouped" else LAYOUTS)[layout]
    place = place_on(1 if declared["mesh"] == dict(data=1) else 4, declared)
    optimizer = make_optimizer(OptimizerConfig(name, weight_decay=0.1), specs, place)
    weights = pad_tree(initialize(model, jax.random.key(0)), specs, place)
    weights = jax.device_put(weights, place.shardings("optimizer", physical_specs(specs, place)))

    def update(weights: Any) -> Any:
        zero = jax.tree.map(jnp.zeros_like, weights)
        updates, _ = optimizer.update(zero, optimizer.init(weights), weights)
        return jax.tree.map(lambda p, u: p + rate * u, weights, updates)

    new = strip_tree(jax.jit(update)(weights), specs, place)
    old = strip_tree(weights, specs, place)
    for (path, _), before, after in zip(named_specs(specs), jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        if path.split("/")[-1] in WHOLE:
            np.testing.assert_array_equal(after, before, err_msg=path)
        else:
            np.testing.assert_allclose(after, before * (1 - rate * 0.1), rtol=3e-7, err_msg=path)


def test_muon_takes_hidden_matrices_from_inputs_to_outputs() -> None:
    specs = dict(named_specs(describe(MODELS["gpt"])))
    found = {path: matrix_dims(spec) for path, spec in specs.items()}
    matrices = {path: tuple(dims) for path, dims in found.items() if dims is not None}
    assert matrices == {
        "layers/attention/query": ((1,), (2, 3)),
        "layers/attention/key": ((1,), (2, 3)),
        "layers/attention/value": ((1,), (2, 3)),
        "layers/attention/output": ((1, 2), (3,)),
        "layers/mlp/up": ((1,), (2,)),
        "layers/mlp/down": ((1,), (2,)),
    }


def test_experts_and_routers_decay_and_are_matrices_as_their_dims_say() -> None:
    """Case G2 for experts: all their matrices decay, and the router's; its bias does not. Muon takes each expert's own
    matrices, but not the router's: it is an output."""
    specs = dict(named_specs(describe(MODELS["grouped"])))
    prefix = "layers/moe/"
    matrices = {f"experts/{name}" for name in ("gate", "up", "down")}
    mask = dict(zip(specs, jax.tree.leaves(decay_mask(describe(MODELS["grouped"]))), strict=True))
    of_moe = {path.removeprefix(prefix): decays for path, decays in mask.items() if path.startswith(prefix)}
    assert {path for path, decays in of_moe.items() if decays} == {*matrices, "router/weight"}
    assert {path for path, decays in of_moe.items() if not decays} == {"router/bias"}
    found = {path: matrix_dims(specs[prefix + path]) for path in of_moe}
    of_each = ((2,), (3,))  # of [layers, expert, inputs, outputs]
    assert found == dict.fromkeys(of_moe) | dict.fromkeys(matrices, of_each)
    assert {path for path in specs if path.startswith("dense_layers/mlp/")} <= {
        path for path, spec in specs.items() if matrix_dims(spec) is not None
    }


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_moment_has_the_dims_of_its_weight(name: str) -> None:
    model = MODELS["gpt"]
    weights = dict(named_specs(describe(model)))
    specs = named_specs(state_specs(model, OptimizerConfig(name)).opt_state)
    moments = [(path, spec) for path, spec in specs if set(spec.dims) - {"unnamed"}]
    assert len(moments) == {"adamw": 2 * len(weights), "muon": 2 * len(weights) - 6}[name]
    for path, spec in moments:
        weight = next(weight for weight in weights if path.endswith("/" + weight))
        assert (spec.dims, spec.shape) == (weights[weight].dims, weights[weight].shape)
        assert spec.dtype == np.float32
    assert len(specs) - len(moments) <= 3  # counters, and Muon's coefficients


def test_sgd_keeps_nothing_and_follows_the_gradient() -> None:
    specs = describe(MODELS["moe"])
    config = OptimizerConfig("sgd", weight_decay=0.5)
    assert named_specs(state_specs(MODELS["moe"], config).opt_state) == []
    weights = initialize(MODELS["moe"], jax.random.key(0))
    gradients = jax.tree.map(lambda w: jnp.full(w.shape, 0.25), weights)
    optimizer = make_optimizer(config, specs)
    updates, _ = optimizer.update(gradients, optimizer.init(weights), weights)
    for update, weight, decays in zip(*map(jax.tree.leaves, (updates, weights, decay_mask(specs))), strict=True):
        np.testing.assert_allclose(update, -0.25 - 0.5 * weight * decays, rtol=1e-6)


@pytest.mark.parametrize(
    "bad", [dict(name="adamv"), dict(learning_rate=0.0), dict(eps=0.0), dict(weight_decay=-1.0), dict(clip=0.0)]
)
def test_bad_values(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="optimizer"):
        OptimizerConfig(**bad)
