"""Muon is optax's, in its numbers and its state; and each device makes whole matrices of its own orthogonal."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from meshtrain.layout import Placement, map_specs
from meshtrain.layout.padding import pad_tree, physical_specs, strip_tree
from meshtrain.model import describe
from meshtrain.step import OptimizerConfig
from meshtrain.step.muon import newton_schulz
from meshtrain.step.optimizer import decay_mask, make_optimizer, matrix_dims
from tests.run.proofs import MODELS, place_on

CONFIG = OptimizerConfig("muon")


def numbers(specs: Any, seed: int) -> Any:
    """A normal array of each spec's shape."""
    rng = np.random.default_rng(seed)
    return map_specs(lambda spec: rng.normal(size=spec.shape).astype(np.float32), specs)


def of_optax(specs: Any) -> optax.GradientTransformation:
    dims_of = map_specs(
        lambda spec: None if (dims := matrix_dims(spec)) is None else optax.contrib.MuonDimensionNumbers(*dims), specs
    )
    muon = optax.contrib.muon(
        1.0, beta=CONFIG.beta, eps=CONFIG.eps, adam_b1=CONFIG.b1, adam_b2=CONFIG.b2, consistent_rms=0.2,
        muon_weight_dimension_numbers=dims_of,
    )  # fmt: skip
    return optax.chain(muon, optax.add_decayed_weights(-CONFIG.weight_decay, decay_mask(specs)))


@pytest.mark.slow
def test_it_is_optax_muon() -> None:
    """Two steps: the same updates but for the order of sums, the same state, and leaves of the same names."""
    specs = describe(MODELS["grouped"])
    weights = numbers(specs, 9)
    both = (make_optimizer(CONFIG, specs), of_optax(specs))
    states = [one.init(weights) for one in both]
    for step in range(2):
        grads, made = numbers(specs, step), []
        for i, one in enumerate(both):
            updates, states[i] = jax.jit(one.update)(grads, states[i], weights)
            made.append(updates)
        # Five products of matrices of up to 64 in float32, each magnified by at most the iteration's slope of 3.4.
        for ours, theirs in zip(*map(jax.tree.leaves, made), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
    mine, theirs = (jax.tree_util.tree_flatten_with_path(state)[0] for state in states)
    assert [jax.tree_util.keystr(path) for path, _ in mine] == [jax.tree_util.keystr(path) for path, _ in theirs]
    for (_, ours), (_, other) in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(ours, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "declared"),
    [
        ("qwen", dict(
            mesh=dict(stage=2, data=2), rules=dict(batch="data", layers="stage"), optimizer=dict(embed="data"),
            pipeline=dict(schedule="1f1b", microbatches=2, layers=(3, 1)),
        )),
        ("grouped", dict(
            mesh=dict(data=2, expert=2), rules=dict(batch=("data", "expert"), expert="expert"),
            optimizer=dict(embed=("data", "expert"), expert_embed="data"),
        )),
    ],
)  # fmt: skip
def test_whole_matrices_of_some_layers_on_each_device(model: str, declared: dict[str, Any]) -> None:
    """The update of what is stored in parts is that of one device; that of its parts alone is not."""
    specs = describe(MODELS[model])
    place = place_on(4, declared)
    weights, grads = numbers(specs, 0), numbers(specs, 1)

    def updated(place: Placement, weights: Any, grads: Any) -> tuple[Any, str]:
        optimizer = make_optimizer(CONFIG, specs, place)
        arguments = grads, optimizer.init(weights), weights
        program = jax.jit(optimizer.update).lower(*arguments).compile()
        return program(*arguments)[0], program.as_text() or ""

    def stored(tree: Any) -> Any:
        physical = physical_specs(specs, place)
        return jax.device_put(pad_tree(tree, specs, place), place.shardings("optimizer", physical))

    one, _ = updated(place_on(1, dict(mesh=dict(data=1))), weights, grads)
    many, text = updated(place, stored(weights), stored(grads))
    for ours, theirs in zip(*map(jax.tree.leaves, (strip_tree(many, specs, place), one)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
    assert "all-to-all" in text
    assert "all-gather" not in text


def test_parts_are_not_orthogonal_as_the_whole_is() -> None:
    """What the layouts would get, if each device made its own part orthogonal."""
    x = jax.random.normal(jax.random.key(0), (8, 8))
    coefficients = jax.numpy.array([3.4445, -4.7750, 2.0315])
    parts = jax.numpy.concatenate([newton_schulz(part, coefficients, 1e-8) for part in (x[:4], x[4:])])
    assert np.abs(parts - newton_schulz(x, coefficients, 1e-8)).max() > 0.1
