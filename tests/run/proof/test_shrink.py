"""Shrinking keeps every role: what is cut stays cut by every axis, what is shared stays shared."""

import dataclasses
from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Layout, MeshShape
from meshtrain.model import LatentConfig, ModelConfig
from meshtrain.run.proof.shrink import shrink, shrink_mesh
from tests.layout.arrays import TENSOR

LARGE = ModelConfig(
    num_layers=126, embed=16384, num_heads=128, num_kv_heads=8, head_dim=128, mlp=53248, vocab=128256, max_length=8192
)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (dict(data=-1, tensor=4), dict(data=2, tensor=4)),
        (dict(data=-1), dict(data=8)),
        (dict(data=4, tensor=2), dict(data=4, tensor=2)),
        (dict(data=-1, tensor=8), dict(data=4, tensor=2)),
        (dict(data=64, stage=16, tensor=8), dict(data=2, stage=2, tensor=2)),
        (dict(data=64, one=1), dict(data=8, one=1)),
        (dict(data=3, tensor=5), dict(data=2, tensor=4)),
        (dict(data=2), dict(data=2)),
        (dict(data=-1, odd=3), dict(data=4, odd=2)),
        ({}, {}),
    ],
)
def test_every_axis_larger_than_1_stays_so(mesh: dict[str, int], expected: dict[str, int]) -> None:
    assert shrink_mesh(MeshShape.parse(mesh), 8) == expected


def test_too_many_axes_for_the_devices() -> None:
    with pytest.raises(InputError, match="--devices 16 would work"):
        shrink_mesh(MeshShape.parse(dict(a=2, b=2, c=2, d=2)), 8)


def test_one_device_holds_a_mesh_that_takes_what_there_is() -> None:
    assert shrink_mesh(MeshShape.parse(dict(data=-1)), 1) == dict(data=1)
    with pytest.raises(InputError, match="has 1 axis larger than 1, which takes at least 2 devices, not 1"):
        shrink_mesh(MeshShape.parse(dict(tensor=4)), 1)


def shrunk(model: ModelConfig, *declared: dict[str, Any]) -> Any:
    layouts = [Layout.parse(one) for one in declared]
    return shrink(model, layouts, [shrink_mesh(layout.mesh, 8) for layout in layouts])


def test_latents_stay_latents_and_divide() -> None:
    sizes = LatentConfig(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    model = dataclasses.replace(LARGE, num_kv_heads=128, head_dim=192, latent=sizes)
    rules = dict(TENSOR, kv_rank="tensor", query_rank="tensor")
    found = shrunk(model, dict(mesh=dict(data=-1, tensor=4), rules=rules, params=dict(embed="data")))
    assert "latent.kv_rank 512 -> 12" in found.changes
    small = found.model
    assert small.num_heads == small.num_kv_heads == 4
    assert small.latent is not None
    assert small.latent.query_rank != small.latent.kv_rank
    assert small.latent.query_rank % 4 == small.latent.kv_rank % 4 == 0
    assert small.value_dim < small.head_dim


def test_sizes_divide_under_every_layout() -> None:
    small = shrunk(
        LARGE,
        dict(mesh=dict(data=-1, tensor=2), rules=TENSOR, params=dict(embed="data"), accumulate=3),
        dict(mesh=dict(a=-1), rules=dict(batch="a"), optimizer=dict(mlp="a", embed=None)),
    )
    model = small.model
    assert model.embed % 4 == model.mlp % 8 == model.num_heads % 2 == model.num_kv_heads % 2 == 0
    assert model.num_heads // model.num_kv_heads == 2
    assert small.global_batch % 12 == small.global_batch % 8 == 0
    assert model.vocab % 2 == 1
    assert "embed 16,384 -> 32" in small.changes


@pytest.mark.parametrize(("kv_heads", "expected"), [(8, 4), (4, 4), (2, 2), (1, 1)])
def test_heads_fewer_than_their_axis_stay_fewer(kv_heads: int, expected: int) -> None:
    model = dataclasses.replace(LARGE, num_kv_heads=kv_heads)
    small = shrunk(model, dict(mesh=dict(data=-1, tensor=4), rules=TENSOR)).model
    assert small.num_kv_heads == expected
    assert small.num_heads % 4 == 0


def test_features_stay() -> None:
    model = dataclasses.replace(
        LARGE,
        num_layers=24,
        window=4096,
        window_layers=(True, False),
        tied=True,
        qk_norm=True,
        dropout=0.1,
        num_kv_heads=128,
    )
    small = shrunk(model, dict(mesh=dict(data=-1), rules=dict(batch="data"))).model
    assert small.window is not None
    assert small.window < 32
    assert small.num_layers == 2
    assert small.num_heads == small.num_kv_heads == 2
    assert (small.tied, small.qk_norm, small.dropout) == (True, True, 0.1)
