"""Every layout file computes what `single` does: loss, every gradient, parameters and moments (float32, 3 steps).

And the variations that layouts allow: accumulation, remat, heads that are fewer than their axis, a padded vocabulary,
other names and orders of axes, another optimizer. That these tests bite is shown in test_layouts_differ.py.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.run import config_file
from meshtrain.run.proof.outcome import run_case
from meshtrain.step import Precision
from tests.run.proofs import BATCH, MODELS, Verdict, check_equal, place_on, proof_of, verdict_on


def fits(file: Path) -> bool:
    """Whether the mesh takes at most 8 devices beside its -1; layouts of published runs take thousands."""
    sizes = config_file.read(str(file), "layout").values["mesh"].values()
    return math.prod(size for size in sizes if size > 0) <= 8


FILES = [file for file in sorted((Path(__file__).parents[2] / "configs" / "layouts").glob("*.py")) if fits(file)]
QUICK = ("zero2", "tensor_zero3")  # in `make check`; `make test` has all
MESH = dict(data=2, tensor=4)
TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
ZERO1 = dict(mesh=dict(data=8), rules=dict(batch="data"), optimizer=dict(embed="data"))
UNEVEN = dict(
    mesh=dict(stage=2, data=4), rules=dict(batch="data", layers="stage"), optimizer=dict(embed="data"),
    pipeline=dict(layers=[2, 0]),
)  # fmt: skip
ZERO3 = dict(mesh=dict(data=4, tensor=2), rules=TENSOR, activations=dict(stream="tensor"), params=dict(embed="data"))


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[] if file.stem in QUICK else [pytest.mark.slow], id=file.stem) for file in FILES],
)
def test_every_layout_file(file: Path) -> None:
    """Initial weights bitwise, too. Cases N1 (ratios are 1), N5 (parts without a counted token), N10 (the loss)."""
    values = config_file.read(str(file), "layout").values
    place = place_on(8, values)
    unit = place.num_shards("batch") * place.num_microbatches
    proof = proof_of("llama", num_steps=3, batch=-(-BATCH // unit) * unit)
    verdict = check_equal(proof, values, initialize=True)
    assert verdict.comparison is not None
    assert len(verdict.comparison.of("gradient")) == len(proof.reference.gradients) + 1
    assert len(verdict.comparison.of("moment")) == 2 * len(proof.reference.gradients)


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["full", "dots", "names"])
def test_remat(remat: str) -> None:
    check_equal(proof_of("llama"), dict(ZERO3, remat=remat))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["params", "grads", "optimizer"])
def test_accumulation_under_each_zero_stage(kind: str) -> None:
    """Case N5: with 4 microbatches one of them has no counted token; N2: the mask is uneven."""
    declared = dict(mesh=dict(data=2), rules=dict(batch="data"), accumulate=4)
    check_equal(proof_of("llama"), {**declared, kind: dict(embed="data")}, num_devices=2)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "qwen", "gemma"])
def test_other_models(model: str) -> None:
    """Case L3: qwen has 4 key heads on 4 devices, gemma 1; L4: vocabularies 31 and 40 on 4; N4: gemma has dropout."""
    check_equal(proof_of(model), dict(mesh=MESH, rules=TENSOR, grads=dict(embed="data"), accumulate=2))


def test_fewer_key_heads_than_devices() -> None:
    """Case L3: 4 heads with 2 key heads, each on 2 of 4 devices; K and V gradients as on one device."""
    verdict = check_equal(proof_of("llama"), dict(mesh=MESH, rules=TENSOR))
    assert {f.code for f in verdict.findings} == {"heads-replicated", "vocab-padded"}


@pytest.mark.slow
@pytest.mark.parametrize("axis", [1, 2, 4])
@pytest.mark.parametrize("role", ["data", "tensor", "store"])
def test_every_axis_at_every_size(role: str, axis: int) -> None:
    """Case N1: a role's axis at 1, 2 and 4 beside nothing else."""
    declared: dict[str, dict[str, Any]] = {
        "data": dict(mesh=dict(x=axis), rules=dict(batch="x")),
        "tensor": dict(mesh=dict(x=axis), rules=dict(heads="x", kv_heads="x", mlp="x", vocab="x")),
        "store": dict(mesh=dict(x=axis), rules=dict(batch="x"), params=dict(embed="x")),
    }
    check_equal(proof_of("llama"), declared[role], num_devices=axis)


@pytest.mark.slow
def test_copies_stay_the_same_for_twenty_steps() -> None:
    """Case N1: replicas of a parameter are bitwise equal on all devices after 20 steps (`faults` would say so)."""
    proof = proof_of("llama", num_steps=20)
    verdict = verdict_on(proof, dict(mesh=dict(a=2, b=2, c=2), rules=dict(batch=("a", "b"), mlp="c", heads="c")))
    assert verdict.comparison is not None
    assert verdict.comparison.faults == ()


def outcome_of(declared: dict[str, Any]) -> Any:
    proof = proof_of("llama")
    return run_case(proof.case, place_on(8, declared), proof.reference.start)


@pytest.mark.slow
def test_renaming_all_axes_changes_no_bit() -> None:
    names = {"data": "rows", "tensor": "columns"}

    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {names.get(key, key): rename(inner) for key, inner in value.items()}
        return names.get(value, value)

    first, second = outcome_of(ZERO3), outcome_of(rename(ZERO3))
    assert first.metrics == second.metrics
    for kind in ("gradients", "params", "moments"):
        for path, value in getattr(first, kind).items():
            np.testing.assert_array_equal(getattr(second, kind)[path], value, err_msg=path)


@pytest.mark.slow
def test_reordering_the_mesh_changes_nothing() -> None:
    reordered: dict[str, Any] = dict(ZERO3, mesh=dict(tensor=2, data=4))
    check_equal(proof_of("llama"), reordered)


@pytest.mark.slow
@pytest.mark.parametrize("declared", [ZERO3, ZERO1, UNEVEN])
def test_muon(declared: dict[str, Any]) -> None:
    """Orthogonalisation needs whole matrices: the compiler must gather what a layout has cut."""
    check_equal(proof_of("llama", 2, "muon"), declared)


@pytest.mark.slow
@pytest.mark.parametrize(
    "declared",
    [
        dict(
            mesh=dict(stage=2, data=2), rules=dict(batch="data", layers="stage"), params=dict(embed="data"),
            pipeline=dict(microbatches=2, gather="pass"),
        ),
        dict(mesh=dict(data=2, tensor=2, other=1), rules=TENSOR),
    ],
    ids=["gathered in every pass", "an axis of size 1"],
)  # fmt: skip
def test_bfloat16(declared: dict[str, Any]) -> None:
    """A step's loss and norm are those of float32 to a few roundings. (XLA's CPU compiler ended the process.)"""
    proof = proof_of("llama")
    half = replace(proof.case.config, precision=Precision("bfloat16"))
    found = run_case(replace(proof.case, config=half, num_steps=1), place_on(4, declared), proof.reference.start)
    for name in ("loss", "grad_norm"):
        assert found.metrics[0][name] == pytest.approx(proof.reference.metrics[0][name], rel=0.02)


def test_the_models_exercise_what_they_are_for() -> None:
    assert {config.vocab % 4 for config in MODELS.values()} >= {0, 1, 3}
    assert any(config.dropout for config in MODELS.values())
    assert Verdict is not None
