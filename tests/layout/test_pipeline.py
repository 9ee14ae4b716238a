"""The pipeline section: how layers are cut into pieces, and how their stack lies on the devices."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import ArraySpec, Layout, Placement, place
from meshtrain.layout.padding import arrange_tree, pad_tree, physical_specs, rearranges, strip_tree
from meshtrain.layout.pipeline import Pipeline


def placed(num_stages: int, **pipeline: Any) -> Placement:
    mapping = dict(mesh=dict(deep=num_stages), rules=dict(layers="deep"), pipeline=pipeline)
    return place(Layout.parse(mapping), num_stages)


def stack(num_layers: int) -> tuple[dict, dict]:
    """A stack whose rows say which layer they are (from 1), beside an array without layers."""
    specs = {
        "w": ArraySpec((num_layers, 2), np.dtype("float32"), ("layers", "embed")),
        "b": ArraySpec((2, num_layers), np.dtype("float32"), ("embed", "layers")),
        "scale": ArraySpec((2,), np.dtype("float32"), ("embed",)),
    }
    rows = jnp.arange(1.0, num_layers + 1)
    return specs, {"w": jnp.stack([rows, rows], 1), "b": jnp.stack([rows, rows]), "scale": jnp.ones(2)}


@pytest.mark.parametrize(
    ("layers", "pieces", "expected"),
    [
        (8, 4, (2, 2, 2, 2)),
        (7, 4, (2, 2, 2, 1)),  # the last piece has the output as well
        (6, 4, (1, 2, 2, 1)),  # and the first the embedding
        (5, 4, (1, 2, 1, 1)),
        (126, 16, (7, *[8] * 14, 7)),  # Llama 3 405B
        (126, 128, (0, *[1] * 126, 0)),
        (3, 8, (0, 0, 1, 1, 1, 0, 0, 0)),
    ],
)
def test_layers_are_dealt_out_evenly(layers: int, pieces: int, expected: tuple[int, ...]) -> None:
    assert Pipeline().pieces(layers, pieces) == expected
    assert Pipeline(repeats=pieces).pieces(layers, 1) == expected


def test_chunks_go_around_the_ring() -> None:
    here = placed(2, schedule="interleaved", repeats=2)
    ids = here.layer_ids(8)
    assert ids is not None
    assert ids.tolist() == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


@pytest.mark.parametrize(
    ("num_stages", "num_layers", "pipeline"),
    [(4, 8, {}), (4, 6, {}), (2, 8, dict(repeats=2)), (2, 7, dict(repeats=2)), (2, 5, dict(layers=[4, 1]))],
)
def test_padding_and_back(num_stages: int, num_layers: int, pipeline: Mapping[str, Any]) -> None:
    here = placed(num_stages, **pipeline)
    specs, tree = stack(num_layers)
    physical = jax.jit(lambda tree: pad_tree(tree, specs, here))(tree)
    assert {name: spec.shape for name, spec in physical_specs(specs, here).items()} == jax.tree.map(jnp.shape, physical)
    ids = here.layer_ids(num_layers)
    assert ids is not None
    np.testing.assert_array_equal(physical["w"][:, 0], ids.ravel() + 1)  # zeros in slots without a layer
    for found in (strip_tree(physical, specs, here), strip_tree(jax.device_get(physical), specs, here)):
        jax.tree.map(np.testing.assert_array_equal, found, tree)
    plain = arrange_tree(physical, specs, here, back=True)
    np.testing.assert_array_equal(plain["b"][0, :num_layers], np.arange(1, num_layers + 1))
    jax.tree.map(np.testing.assert_array_equal, arrange_tree(plain, specs, here), physical)
    assert rearranges(specs, here) == bool((ids.ravel()[:num_layers] != np.arange(num_layers)).any())


def test_without_a_pipeline_nothing_is_rearranged() -> None:
    here = place(Layout.parse(dict(mesh=dict(deep=2), rules=dict(layers="deep"))), 2)
    specs, tree = stack(6)
    assert not rearranges(specs, here)
    assert physical_specs(specs, here) == specs
    assert pad_tree(tree, specs, here)["w"] is tree["w"]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (dict(shedule="1f1b"), ["pipeline.shedule", "'schedule'"]),
        (dict(microbatches=0), ["pipeline.microbatches", "at least 1"]),
        (dict(repeats=True), ["pipeline.repeats", "True"]),
        (dict(schedule=3), ["pipeline.schedule", "3"]),
        (dict(gather="never"), ["pipeline.gather", "step, pass"]),
        (dict(layers=[1, -1]), ["pipeline.layers", "-1"]),
        ("1f1b", ["pipeline", "dict"]),
    ],
)
def test_bad_sections(section: Any, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        Layout.parse(dict(mesh=dict(deep=2), rules=dict(layers="deep"), pipeline=section))
    assert all(word in str(error.value) for word in words)


def test_a_pipeline_needs_one_stage_axis() -> None:
    for rules in ({}, dict(layers=("deep", "wide"))):
        with pytest.raises(InputError, match=r"rules.layers: a pipeline's stages are one mesh axis"):
            Layout.parse(dict(mesh=dict(deep=2, wide=2), rules=rules, pipeline={}))


def test_a_declared_list_must_fit() -> None:
    with pytest.raises(InputError, match=r"2 numbers with the sum 6, .* 7 layers; layers=\[4, 3\] would work"):
        placed(2, layers=[3, 3]).physical(stack(7)[0]["w"])


def test_the_batch_is_cut_by_the_pipeline_too() -> None:
    mapping = dict(
        mesh=dict(q=2, deep=2), rules=dict(batch="q", layers="deep"), accumulate=2, pipeline=dict(microbatches=3)
    )
    here = place(Layout.parse(mapping), 4)
    assert here.check_batch(24) == 2
    with pytest.raises(InputError, match=r"6 microbatches \(accumulate x pipeline.microbatches\): 12 in all"):
        here.check_batch(16)
