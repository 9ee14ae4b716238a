"""Reading under layouts: the same numbers wherever they land, each device's own slices, padding that is zeros."""

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from meshtrain.io.hf import open_folder, reading, table
from meshtrain.io.hf.safetensors import Tensor
from meshtrain.io.hf.table import copy
from meshtrain.layout import Layout, Placement, place
from meshtrain.layout.padding import arrange_tree
from meshtrain.model import ModelConfig, MoEConfig, describe
from meshtrain.run import config_file
from meshtrain.run.proof.shrink import shrink_layout
from tests.io.hf.arrays import ROOT, logical, read
from tests.io.hf.made import make_folder

LAYOUTS = sorted(path.stem for path in (ROOT / "configs" / "layouts").glob("*.py"))
# Sizes that divide by every layout of eight devices; a vocabulary that does not, and is padded.
MODEL = ModelConfig(
    num_layers=8, embed=16, num_heads=8, num_kv_heads=8, head_dim=4, mlp=16, vocab=67, max_length=64, norm_eps=1e-5
)
MOE = ModelConfig(**{**MODEL.__dict__, "moe": MoEConfig(8, 2, 8)})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """By whether the model has experts: a Llama and a Mixtral folder."""
    root = tmp_path_factory.mktemp("folders")
    return {False: make_folder(root / "llama", MODEL), True: make_folder(root / "mixtral", MOE, "mixtral", "BF16")}


def placed(name: str) -> Placement:
    """The layout on eight devices; where it takes more, its longest axes are halved until it does not, and a pipeline's
    layers are dealt out anew."""
    file = config_file.read(str(ROOT / "configs" / "layouts" / f"{name}.py"), "--layout")
    mesh = dict(file.values["mesh"])
    while math.prod(abs(size) for size in mesh.values()) > 8:
        longest = max(mesh, key=lambda axis: mesh[axis])
        mesh[longest] //= 2
    layout = Layout.parse(file.values | {"mesh": mesh}, name, file.doc)
    sizes = layout.mesh.resolve(8 if -1 in mesh.values() else math.prod(mesh.values()))
    return place(shrink_layout(layout, sizes), math.prod(sizes.values()))


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_file_gets_the_same_parameters(name: str, folders: dict[bool, Path]) -> None:
    layout = placed(name)
    folder = open_folder(folders["expert" in name or "deepseek" in name or "moe" in name])
    expected = logical(folder, read(folder))
    params = read(folder, layout)
    for (path, values), array in zip(logical(folder, params).items(), jax.tree.leaves(params), strict=True):
        assert np.array_equal(values, expected[path]), path
        beyond = np.asarray(array).copy()
        beyond[tuple(slice(size) for size in values.shape)] = 0
        assert not beyond.any(), path
    # What the run does with it afterwards puts a pipeline's layers in the order of its stages, and back.
    specs = describe(folder.model)
    turned = arrange_tree(arrange_tree(params, specs, layout), specs, layout, back=True)
    assert all(np.array_equal(values, expected[path]) for path, values in logical(folder, turned).items())


def test_each_device_reads_its_own_slices_only(folders: dict[bool, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Under ZeRO-3 x tensor parallelism every element of a cut tensor is asked for once."""
    asked: dict[str, int] = {}
    original = reading.view

    class Counted(np.ndarray):
        def __getitem__(self, index: Any) -> Any:
            found = np.asarray(self)[index]
            asked[self.name] = asked.get(self.name, 0) + found.size  # type: ignore[attr-defined]
            return found

    def view(tensor: np.ndarray, piece: Any, spec: Any) -> Any:
        counted = original(tensor, piece, spec).view(Counted)
        counted.name = piece.name  # type: ignore[attr-defined]
        return counted

    monkeypatch.setattr(reading, "view", view)
    folder = open_folder(folders[False])
    read(folder, placed("tensor_zero3"))
    tensors: dict[str, Tensor] = folder.tensors
    for name in ("model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.weight", "lm_head.weight"):
        assert asked[name] == np.prod(tensors[name].shape), name


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("part", [slice(None), slice(3, 17)])
def test_a_copy_is_what_numpy_makes_of_it_in_whatever_order_the_numbers_lie(
    order: tuple[int, ...], part: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dims that merge and dims that do not (a part of each), rows beyond the last full tile, another dtype."""
    monkeypatch.setattr(table, "_TILE", 1)
    stored = np.random.default_rng(0).normal(size=(21, 34, 19)).astype(ml_dtypes.bfloat16)
    values = stored[:, part, 1:].transpose(order)
    out = np.zeros(values.shape, np.float32)
    copy(out, values)
    assert np.array_equal(out, values.astype(np.float32))
    turned = np.zeros_like(stored)
    copy(turned[:, part, 1:].transpose(order), out)  # and back, as an export does
    assert np.array_equal(turned[:, part, 1:], stored[:, part, 1:])
    assert not turned[..., 0].any()


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("turned", [False, True])
def test_every_number_keeps_its_bits(stored: Any, turned: bool) -> None:
    """All numbers of 16 bits, and of 32 as many: zeros of both signs, subnormal ones, infinities, and what is none.

    float16 is held against its definition: 5 bits of exponent and 10 of fraction become 8 and 23.
    """
    bits: np.ndarray = np.arange(1 << 16, dtype=np.uint32).reshape(256, 256)
    if stored == np.float32:
        bits = bits << 16 | bits  # every sign, exponent and leading fraction, and fractions to the last bit
    values = bits.astype(f"u{np.dtype(stored).itemsize}").view(stored)
    out = np.zeros((256, 256), np.float32)
    copy(out, values.T if turned else values)
    found = (out.T if turned else out).copy().view(np.uint32)
    if stored == ml_dtypes.bfloat16:
        bits = bits << 16
    elif stored == np.float16:
        sign, exponent, fraction = bits >> 15, bits >> 10 & 31, bits & 1023
        small = (fraction.astype(np.float32) / (1 << 24)).view(np.uint32)  # subnormal, or zero
        normal = np.where(exponent == 31, 255, exponent + 112) << 23 | fraction << 13
        bits = sign << 31 | np.where(exponent, normal, small)
        quiet = np.where((exponent == 31) & (fraction > 0), np.uint32(1 << 22), np.uint32(0))
        found, bits = found | quiet, bits | quiet  # processors may make a signalling one quiet
    assert np.array_equal(found, bits)
