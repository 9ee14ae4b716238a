"""Muon in the plan: whose matrices a device makes orthogonal, their FLOPs as compiled, and the seconds they take."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.audit.hlo import parse_module
from meshtrain.audit.overlap import module_flops
from meshtrain.cost.muon import Dealt, dealt, iteration_products
from meshtrain.layout import Placement, map_specs
from meshtrain.layout.padding import physical_specs
from meshtrain.model import describe
from meshtrain.step import OptimizerConfig
from meshtrain.step.muon import newton_schulz
from meshtrain.step.optimizer import make_optimizer, optimizer_specs
from tests.cost.clusters import cluster
from tests.run.proofs import MODELS, place_on

MUON = OptimizerConfig("muon")
ZERO = dict(optimizer=dict(embed="data"))
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("gpt", dict(mesh=dict(data=4), rules=dict(batch="data"))),
    "zero": ("qwen", dict(mesh=dict(data=4), rules=dict(batch="data"), **ZERO)),
    "filled up": ("gpt", dict(mesh=dict(data=4), rules=dict(batch="data"), **ZERO)),
    "tensor": ("gpt", dict(mesh=dict(data=2, tensor=2), rules=dict(batch="data", mlp="tensor"), **ZERO)),
    "stages": ("qwen", dict(
        mesh=dict(stage=2, data=2), rules=dict(batch="data", layers="stage"),
        pipeline=dict(schedule="1f1b", microbatches=2), **ZERO,
    )),
    "experts": ("moe", dict(mesh=dict(expert=4), rules=dict(batch="expert", expert="expert"))),
}  # fmt: skip


def of_device(name: str) -> tuple[Dealt, ...]:
    of, declared = LAYOUTS[name]
    return dealt(MODELS[of], MUON, place_on(4, declared), cluster("h100_roce"))


def compiled_flops(of: str, place: Placement) -> float:
    """Of the products in the compiled update of one device, which has no others than Muon's."""
    specs = describe(MODELS[of])
    optimizer = make_optimizer(MUON, specs, place)

    def stored(tree: Any) -> Any:
        physical = physical_specs(tree, place)
        shardings = place.shardings("optimizer", physical)
        return map_specs(lambda s, at: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=at), physical, shardings)

    state, weights = stored(optimizer_specs(make_optimizer(MUON, specs), specs)), stored(specs)
    text = jax.jit(optimizer.update).lower(weights, state, weights).compile().as_text()
    assert text is not None
    return module_flops(parse_module(text))


@pytest.mark.parametrize("name", LAYOUTS)
def test_flops_are_those_of_the_compiled_update(name: str) -> None:
    """To the last one, zeros that fill a stack up included."""
    of, declared = LAYOUTS[name]
    assert sum(one.flops for one in of_device(name)) == compiled_flops(of, place_on(4, declared))


def test_the_dealing_follows_the_layout() -> None:
    """Of a weight's stack of 4 layers a device of 4 gets 1, or 4 where nothing is cut; of 2 layers 1, half of them
    zeros; a stage's device 1 of its 2; of 8 experts in each of 2 layers those that it has."""
    numbers = {name: {one.number for one in of_device(name)} for name in LAYOUTS}
    assert numbers == {
        "whole": {2}, "zero": {1}, "filled up": {1}, "tensor": {1}, "stages": {1}, "experts": {2, 4},
    }  # fmt: skip
    assert dealt(MODELS["gpt"], OptimizerConfig(), place_on(4, LAYOUTS["zero"][1]), cluster("h100_roce")) == ()


def test_flops_of_the_iteration() -> None:
    """Five times A = X X', A A and (..) X: 4 short^2 long + 2 short^3 each; XLA counts those of one turn, and
    element-wise work: a few for each number of X and of A."""
    for rows, columns in ((96, 320), (320, 96), (128, 128)):
        short, long = sorted((rows, columns))
        exact = 5 * (4 * short**2 * long + 2 * short**3)
        assert sum(2 * m * k * n for m, k, n in iteration_products(rows, columns)) == exact
        shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, columns), (3,)))
        counted = jax.jit(newton_schulz, static_argnums=2).lower(*shapes, 1e-8).compile().cost_analysis()
        assert exact / 5 < counted["flops"] < exact / 5 + 8 * (short**2 + short * long)
