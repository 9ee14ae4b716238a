"""First weights: as described, from (key, path) alone, bitwise the same on every mesh."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.layout import Layout, place
from meshtrain.layout.array import map_specs
from meshtrain.model import ModelConfig, describe, initialize
from meshtrain.model.weight import add_bias
from tests.model.families import FAMILIES, LLAMA, SIZES
from tests.quick import first_weights

KEY = jax.random.key(0)
TINY = ModelConfig(**importlib.import_module("configs.models.tiny").get_config().to_dict())


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_weights_are_as_described(config: ModelConfig) -> None:
    map_specs(
        lambda spec, x: np.testing.assert_equal((x.shape, x.dtype), (spec.shape, spec.dtype)),
        describe(config),
        jax.eval_shape(lambda key: initialize(config, key), KEY),
    )


def test_scales_are_one_biases_zero_and_matrices_have_their_deviation() -> None:
    config = ModelConfig(**{**SIZES, "embed": 64, "mlp": 96}, attention_bias=True)
    params = first_weights(config, KEY)
    assert (params["layers"]["attention_norm"]["scale"] == 1).all()
    assert (params["layers"]["attention"]["key_bias"] == 0).all()
    # the standard deviation of n draws is known to 1 / sqrt(2 n); 5 of those
    for path, std in {"up": 0.02, "down": 0.02 / 2}.items():
        w = params["layers"]["mlp"][path]
        assert abs(float(w.std()) / std - 1) < 5 / (2 * w.size) ** 0.5


def test_a_weight_depends_on_key_and_path_alone() -> None:
    base = first_weights(LLAMA, KEY)
    deeper = first_weights(ModelConfig(**{**SIZES, "num_layers": 3}), KEY)
    other = first_weights(ModelConfig(**SIZES, qk_norm=True, attention_bias=True, tied=True), KEY)
    for name in ("query", "key", "value"):
        w = base["layers"]["attention"][name]
        np.testing.assert_array_equal(w, deeper["layers"]["attention"][name][:2])
        np.testing.assert_array_equal(w, other["layers"]["attention"][name])
        assert (w[0] != w[1]).all()
    assert (base["layers"]["attention"]["key"] != base["layers"]["attention"]["value"]).all()
    assert (base["layers"]["mlp"]["up"] != base["layers"]["mlp"]["gate"]).all()
    assert (base["embedding"]["table"] != base["output"]["table"]).all()
    assert (base["embedding"]["table"] != first_weights(LLAMA, jax.random.key(1))["embedding"]["table"]).all()


@pytest.mark.parametrize("name", ["tensor_zero3", "rows_columns"])
def test_first_weights_are_bitwise_the_same_on_every_mesh(name: str) -> None:
    layout = Layout.parse(importlib.import_module(f"configs.layouts.{name}").get_config().to_dict(), name=name)
    shardings = place(layout).shardings("optimizer", describe(TINY))
    assert any(not sharding.is_fully_replicated for sharding in jax.tree.leaves(shardings))

    alone = jax.jit(lambda key: initialize(TINY, key))(KEY)
    spread = jax.jit(lambda key: initialize(TINY, key), out_shardings=shardings)(KEY)
    jax.tree.map(lambda one, two: np.testing.assert_array_equal(np.asarray(one), np.asarray(two)), alone, spread)


def test_the_gradient_of_a_bias_is_summed_in_float32() -> None:
    """Over all tokens, whatever the dtype that computes: a sum in bfloat16 would be off by a percent and more."""
    dy = jnp.asarray(np.random.default_rng(0).normal(size=(8, 512, 16)), jnp.bfloat16)
    found = jax.jit(lambda b, dy: jax.vjp(lambda b: add_bias(dy, b), b)[1](dy)[0])(jnp.zeros(16, jnp.bfloat16), dy)
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(dy, np.float64).sum((0, 1)), rtol=2.0**-8)
