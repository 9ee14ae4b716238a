"""Latent attention under layouts: loss, every gradient and the update are those of one device; mistakes are caught.

The rows are packed and padded, dropout is on, and a value is not as wide as a key.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jax
import pytest

from meshtrain.model import latent
from tests.run.proofs import LENGTH, check_equal, proof_of, verdict_on
from tests.step.test_context_layouts import THREE, ring

INPUTS = import_module("meshtrain.model.inputs")

TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
STAGES = dict(mesh=dict(data=2, stage=2, tensor=2), rules=dict(TENSOR, layers="stage"))

CASES: dict[str, dict[str, Any]] = {
    "tensor and sequence": dict(mesh=dict(data=2, tensor=4), rules=TENSOR, activations=dict(stream="tensor")),
    "tensor, zero3": dict(mesh=dict(data=4, tensor=2), rules=TENSOR, params=dict(embed="data"), remat="names"),
    "latents stored in other parts": dict(
        mesh=dict(data=2, other=4), rules=dict(batch=("data", "other")),
        params=dict(embed="data", query_rank="other", kv_rank="other", latent="other"),
    ),
    "latents cut while they are used": dict(
        mesh=dict(data=2, columns=4), rules=dict(batch="data", query_rank="columns", kv_rank="columns", mlp="columns")
    ),
    "ring, zigzag, tensor": dict(THREE, attention="ring", order="zigzag"),
    "gather, zigzag": dict(ring(), attention="gather", remat="dots"),
    "ulysses": dict(ring("contiguous", 1, 8), attention="ulysses", remat="names"),
    "usp, zero3": dict(
        mesh=dict(data=2, outer=2, inner=2), rules=dict(batch="data", length=("outer", "inner")),
        activations=dict(stream=("outer", "inner")), params=dict(embed=("data", "outer")), attention="usp",
        order="zigzag",
    ),
    "1f1b, tensor, zero1": dict(
        STAGES, optimizer=dict(embed="data"), pipeline=dict(schedule="1f1b", microbatches=4), remat="full"
    ),
    "zero2, accumulation": dict(mesh=dict(data=2), rules=dict(batch="data"), grads=dict(embed="data"), accumulate=4),
}  # fmt: skip
QUICK = ("ring, zigzag, tensor",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in CASES])
def test_equals_one_device(name: str) -> None:
    check_equal(proof_of("deepseek"), CASES[name], num_devices=2 if name.startswith("zero2") else 8)


@pytest.mark.slow
def test_muon() -> None:
    """[latent, heads, head_dim] is a matrix from the latent to the heads; it must be gathered whole."""
    check_equal(proof_of("deepseek", 2, "muon"), CASES["latents stored in other parts"])


@pytest.fixture
def _reference() -> Iterator[None]:
    proof_of("deepseek")
    yield
    jax.clear_caches()


def differs(declared: dict[str, Any], path: str) -> None:
    jax.clear_caches()
    verdict = verdict_on(proof_of("deepseek"), declared)
    assert verdict.status == "DIFFERS"
    assert verdict.comparison is not None
    wrong = {difference.path for difference in verdict.comparison.of("gradient") if difference.too_large}
    assert path in wrong


@pytest.mark.usefixtures("_reference")
def test_half_of_the_shared_keys_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if one of two tensor shards kept what its heads add to the key that all heads share."""
    rotate = latent.rotate

    def half(x: jax.Array, tables: Any, interleaved: bool) -> jax.Array:
        y = rotate(x, tables, interleaved)
        return y if x.shape[2] > 1 else y / 2 + jax.lax.stop_gradient(y / 2)

    monkeypatch.setattr(latent, "rotate", half)
    differs(CASES["tensor, zero3"], "layers/attention/key_rope")


@pytest.mark.slow
@pytest.mark.usefixtures("_reference")
def test_rotary_phases_by_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = INPUTS.rotary_tables
    monkeypatch.setattr(INPUTS, "rotary_tables", lambda positions, config: tables(positions % (LENGTH // 4), config))
    differs(ring("contiguous"), "layers/attention/key_rope")
