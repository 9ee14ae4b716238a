"""Muon in the plan: whose matrices a device makes orthogonal, their FLOPs as compiled, and the seconds they take."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.audit.hlo import parse_module
from meshtrain.audit.overlap import module_flops
from meshtrain.cost.muon import Dealt, dealt, iteration_products
from meshtrain.cost.time import StepTime, step_time
from meshtrain.cost.traffic import predict_traffic
from meshtrain.layout import Placement, map_specs
from meshtrain.layout.padding import physical_specs
from meshtrain.model import describe
from meshtrain.step import OptimizerConfig, StepConfig
from meshtrain.step.muon import newton_schulz
from meshtrain.step.optimizer import make_optimizer, optimizer_specs
from meshtrain.step.precision import Precision
from tests.cost.clusters import cluster, ideal
from tests.cost.test_theory import model, placed
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
        assert counted is not None
        assert exact / 5 < counted["flops"] < exact / 5 + 8 * (short**2 + short * long)


def seconds(layout: str, num_devices: int = 8, optimizer: str = "muon") -> StepTime:
    step = StepConfig(model("llama3_8b"), OptimizerConfig(optimizer), Precision("bfloat16"))
    return step_time(step, placed(layout, num_devices), num_devices, 8192, cluster("h100_roce"))


def test_iterations_and_exchange_have_their_own_seconds() -> None:
    """Beside those of AdamW; shared out by ZeRO, whole on each device without it; and they are no model FLOPs."""
    adamw, whole, shared = seconds("ddp", optimizer="adamw"), seconds("ddp"), seconds("zero1")
    assert whole.seconds - adamw.seconds == pytest.approx(whole.parts["muon"])
    assert "matrices" not in whole.parts
    assert shared.parts["muon"] * 8 == pytest.approx(whole.parts["muon"], rel=0.01)
    assert shared.exposed["matrices"] == shared.parts["matrices"] >= shared.hidden["matrices"] > 0
    assert (whole.model_flops, whole.hardware_flops) == (adamw.model_flops, adamw.hardware_flops)
    assert whole.update_flops == pytest.approx(8 * shared.update_flops)
    assert adamw.update_flops == 0
    # 32 layers on 64 devices: half of them have none, but the exchange fills all up.
    assert seconds("zero1", 64).update_flops == pytest.approx(2 * shared.update_flops)


def test_the_exchange_takes_what_the_traffic_sends() -> None:
    """Without latency; half of it is hidden, since the iterations last longer than an exchange."""
    step, place, machine = StepConfig(model("llama3_8b"), MUON), placed("zero1", 8), ideal("h100_roce")
    sent = [one for one in predict_traffic(step, place, global_batch=8, length=8192) if one.kind == "all_to_all"]
    found = step_time(step, place, 8, 8192, machine)
    seconds = sum(one.wire_bytes for one in sent) / machine.link("fast").rate.value
    assert found.parts["matrices"] == found.hidden["matrices"] == pytest.approx(seconds / 2)


def test_iterations_are_bound_by_the_units() -> None:
    """Large products at the float32 rate that programs get, and element-wise work of about a fifth beside them."""
    h100 = cluster("h100_roce")
    found = seconds("ddp")
    least = found.update_flops / 8 / (h100.peak_rate("float32").value * h100.share("matmul"))
    assert 1.1 * least < found.parts["muon"] < 1.5 * least
