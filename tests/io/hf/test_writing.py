"""Exports: the dtype that was asked for everywhere, rounding, shards with an index, all or nothing."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.hf import open_folder
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.writing import Exported, Target, parse_dtype, write_folder
from meshtrain.layout import named_specs
from meshtrain.model import describe
from tests.io.hf.made import LLAMA, make_folder, numbers_of

SPECS = dict(named_specs(describe(LLAMA)))


def export(to: Path, dtype: str, numbers: dict[str, np.ndarray], shard_bytes: int = 10**9) -> Exported:
    target = Target(FAMILIES["llama"], parse_dtype(dtype), shard_bytes)
    return write_folder(to, LLAMA, target, numbers.__getitem__, progress=False)


def random_numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {path: rng.normal(size=spec.shape).astype(np.float32) for path, spec in SPECS.items()}


@pytest.mark.parametrize(
    ("asked", "header", "config", "dtype"),
    [
        ("f32", "F32", "float32", np.dtype(np.float32)),
        ("bf16", "BF16", "bfloat16", np.dtype(ml_dtypes.bfloat16)),
        ("float16", "F16", "float16", np.dtype(np.float16)),
    ],
)
def test_files_and_config_say_the_dtype(tmp_path: Path, asked: str, header: str, config: str, dtype: np.dtype) -> None:
    numbers = random_numbers()
    written = export(tmp_path / "out", asked, numbers)
    assert written.overflows == 0
    folder = open_folder(tmp_path / "out")
    assert {tensor.dtype for tensor in folder.tensors.values()} == {header}
    assert folder.values["torch_dtype"] == config
    up = numbers_of(tmp_path / "out")["model.layers.1.mlp.up_proj.weight"]
    assert np.array_equal(up, numbers["layers/mlp/up"][1].T.astype(dtype))


@pytest.mark.parametrize("spelling", ["dtype", "torch_dtype"])  # of transformers from 5 on, and before
def test_the_config_says_the_dtype_as_the_one_it_began_with(tmp_path: Path, spelling: str) -> None:
    started = {"model_type": "llama", spelling: "float32"}
    target = Target(FAMILIES["llama"], "BF16", 10**9, start=FAMILIES["llama"].config(LLAMA, started, "config.json"))
    write_folder(tmp_path / "out", LLAMA, target, random_numbers().__getitem__, progress=False)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: config.get(key) for key in ("dtype", "torch_dtype")} == {
        "dtype": None, "torch_dtype": None, spelling: "bfloat16",
    }  # fmt: skip
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}  # without it transformers refuses the file


def test_bf16_rounds_to_nearest_even_and_comes_back_exactly(tmp_path: Path) -> None:
    numbers = random_numbers()
    # Between two bf16 neighbours (7 bits of fraction): the tie goes to the even one, and just above it up.
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-8)], np.float32)
    numbers["final_norm/scale"][:4] = ties
    export(tmp_path / "once", "bf16", numbers)
    once = numbers_of(tmp_path / "once")
    rounded = once["model.norm.weight"][:4].astype(np.float32)
    assert rounded.tolist() == [1.0, 1 + 4 * 2**-8, 1 + 2 * 2**-8, -1.0]
    exact = {path: values.astype(ml_dtypes.bfloat16).astype(np.float32) for path, values in numbers.items()}
    export(tmp_path / "twice", "bf16", exact)
    twice = numbers_of(tmp_path / "twice")
    assert all(once[name].tobytes() == twice[name].tobytes() for name in once)


def test_float16_overflow_is_counted(tmp_path: Path) -> None:
    numbers = random_numbers()
    numbers["layers/mlp/up"][0, :3, 0] = [7e4, -1e30, 65504.0]
    numbers["layers/mlp/down"][1, 0, 0] = np.inf  # was so before: not an overflow
    assert export(tmp_path / "out", "f16", numbers).overflows == 2


def test_shards_have_an_index_and_hold_no_more_than_asked(tmp_path: Path) -> None:
    numbers = random_numbers()
    export(tmp_path / "one", "f32", numbers)
    written = export(tmp_path / "many", "f32", numbers, shard_bytes=20_000)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "many").glob("*.safetensors")}
    assert len(sizes) == written.files > 3
    assert set(index["weight_map"].values()) == set(sizes)
    assert index["metadata"]["total_size"] == written.num_bytes == sum(values.nbytes for values in numbers.values())
    tensors = open_folder(tmp_path / "many").tensors
    for file in sizes:
        held = [tensor.num_bytes for tensor in tensors.values() if tensor.file.name == file]
        assert sum(held) <= 20_000 or len(held) == 1
    one, many = numbers_of(tmp_path / "one"), numbers_of(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[name], many[name]) for name in one)


def test_nothing_half_made_is_left_and_nothing_is_overwritten(tmp_path: Path) -> None:
    numbers = random_numbers()

    def failing(path: str) -> np.ndarray:
        if path == "layers/mlp/down":
            raise OSError(28, "No space left on device")
        return numbers[path]

    with pytest.raises(InputError, match="no room"):
        write_folder(tmp_path / "out", LLAMA, Target(FAMILIES["llama"], "F32", 10**9), failing, progress=False)
    assert not list(tmp_path.iterdir())
    make_folder(tmp_path / "out", LLAMA)
    before = numbers_of(tmp_path / "out")
    with pytest.raises(InputError, match="out"):
        export(tmp_path / "out", "f32", numbers)
    assert all(np.array_equal(before[name], again) for name, again in numbers_of(tmp_path / "out").items())


def test_an_unknown_dtype() -> None:
    with pytest.raises(InputError, match="f32, bf16, f16"):
        parse_dtype("fp4")
