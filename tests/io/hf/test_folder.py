"""Folders that are not whole: one message with the file and the tensor, before any weight is read. And tied models."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.hf import is_folder, open_folder
from meshtrain.io.hf.safetensors import create
from meshtrain.model import LatentConfig, MoEConfig
from tests.io.hf.made import LLAMA, make_folder

QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama folder in several files."""
    return make_folder(tmp_path / "llama", LLAMA, shard_bytes=40_000)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def edit(path: Path, change: Callable[[dict], None]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def where(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"])


def refused(folder: Path) -> str:
    """The message with which the folder is refused."""
    with pytest.raises(InputError) as error:
        _ = open_folder(folder).weights
    return str(error.value)


def replace_tensor(folder: Path, name: str, shape: tuple[int, ...], dtype: str = "F32") -> str:
    """The file that holds the tensor again, with the tensor in another shape or dtype; the file's name."""
    file = folder / where(folder)[name]
    old = {tensor.name: (tensor.dtype, tensor.shape) for tensor in open_folder(folder).tensors.values()}
    inside = [n for n, place in where(folder).items() if place == file.name]
    file.unlink()
    create(file, [(n, dtype, shape) if n == name else (n, *old[n]) for n in inside])
    return file.name


def only(folder: Path, *names: str) -> None:
    """Leaves these files in the folder and no others; those that are not there are made."""
    for file in folder.iterdir():
        if file.name not in names:
            file.unlink()
    for name in names:
        (folder / name).touch()


def hub(folder: Path) -> None:
    """In its place the folder of a model in the Hub's cache, in which the model's own is further down."""
    shutil.rmtree(folder)
    (folder / "snapshots" / "1f").mkdir(parents=True)
    (folder / "snapshots" / "1f" / "config.json").write_text("{}")


def test_a_whole_folder_is_taken(folder: Path) -> None:
    assert is_folder(folder)
    assert len(files(folder)) > 2
    found = open_folder(folder)
    assert found.model == LLAMA
    assert {tensor.name for parts in found.weights.values() for _, tensor in parts} == set(where(folder))


def test_a_missing_file(folder: Path) -> None:
    gone = where(folder)[QUERY]
    (folder / gone).unlink()
    assert gone in refused(folder)
    assert "missing" in refused(folder)


@pytest.mark.parametrize("size", [3, 100, -4])
def test_a_truncated_file(folder: Path, size: int) -> None:
    file = files(folder)[1]
    file.write_bytes(file.read_bytes()[:size])
    assert file.name in refused(folder)


def test_marks_of_utf8_are_no_json(folder: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    assert is_folder(folder)
    assert open_folder(folder).weights


def test_a_config_that_cannot_be_read_beside_weights_is_a_folders(folder: Path) -> None:
    """As a program on Windows writes it; it is named, and not taken for a run's."""
    (folder / "config.json").write_bytes((folder / "config.json").read_text().encode("utf-16"))
    assert is_folder(folder)
    assert "config.json: cannot be read" in refused(folder)


def test_bytes_behind_the_last_tensor(folder: Path) -> None:
    file = files(folder)[1]
    file.write_bytes(file.read_bytes() + b"xxxx")
    assert file.name in refused(folder)
    assert "4 bytes" in refused(folder)


def test_a_tensor_in_another_file_than_the_index_says(folder: Path) -> None:
    there = where(folder)[QUERY]
    other = next(file.name for file in files(folder) if file.name != there)
    edit(folder / "model.safetensors.index.json", lambda index: index["weight_map"].update({QUERY: other}))
    assert all(text in refused(folder) for text in (QUERY, there, other))


def test_a_tensor_that_the_index_does_not_know(folder: Path) -> None:
    edit(folder / "model.safetensors.index.json", lambda index: index["weight_map"].pop(QUERY))
    assert all(text in refused(folder) for text in (QUERY, "index", ".safetensors"))


def test_a_tensor_that_only_the_index_knows(folder: Path) -> None:
    file = files(folder)[0].name
    edit(folder / "model.safetensors.index.json", lambda index: index["weight_map"].update({"model.extra": file}))
    assert all(text in refused(folder) for text in ("model.extra", file))


def test_a_stray_file(folder: Path) -> None:
    shutil.copyfile(files(folder)[0], folder / "old.safetensors")
    assert all(text in refused(folder) for text in ("old.safetensors", "stray"))


def test_a_publishers_own_files_are_passed_over(folder: Path) -> None:
    shutil.copyfile(files(folder)[0], folder / "consolidated.safetensors")
    assert open_folder(folder).weights


@pytest.mark.parametrize(("shape", "text"), [((32, 31), "[32, 31]"), ((32, 32, 1), "[32, 32, 1]")])
def test_a_tensor_of_another_shape(folder: Path, shape: tuple[int, ...], text: str) -> None:
    file = replace_tensor(folder, QUERY, shape)
    assert all(part in refused(folder) for part in (file, QUERY, text, "[32, 32]"))


def test_a_tensor_of_a_dtype_that_is_not_read(folder: Path) -> None:
    file = replace_tensor(folder, QUERY, (32, 32), "F8_E4M3")
    assert all(part in refused(folder) for part in (file, QUERY, "F8_E4M3"))


def test_a_padded_vocabulary(folder: Path) -> None:
    """Rows beyond vocab_size are not silently cut off."""
    file = replace_tensor(folder, "lm_head.weight", (128, 32))
    assert all(part in refused(folder) for part in (file, "lm_head.weight", "[128, 32]", "[67, 32]"))


@pytest.mark.parametrize("name", ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_a_tensor_that_the_model_does_not_have(folder: Path, name: str) -> None:
    """More layers than config.json says, a bias that it does not say."""
    create(folder / "more.safetensors", [(name, "F32", (4,))])
    edit(
        folder / "model.safetensors.index.json",
        lambda index: index["weight_map"].update({name: "more.safetensors"}),
    )
    assert all(part in refused(folder) for part in ("more.safetensors", name))


def test_fewer_layers_than_the_config_says(folder: Path) -> None:
    edit(folder / "config.json", lambda config: config.update(num_hidden_layers=3))
    assert "model.layers.2." in refused(folder)


@pytest.mark.parametrize(
    ("break_it", "expected"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[" * 100_000), "index.json"),
        (hub, "name the folder below its snapshots"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "index.json"),
        (lambda folder: edit(folder / "config.json", lambda c: c.update(model_type="lama")), "Did you mean 'llama'"),
        (lambda folder: edit(folder / "config.json", lambda c: c.update(quantization_config={"bits": 4})), "quantiz"),
        (lambda folder: [file.unlink() for file in folder.glob("*safetensors*")], "neither"),
        (lambda folder: edit(folder / "config.json", lambda c: c.update(model_type=["llama"])), "cannot be read"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}'), "weight_map"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "an index has to say"),
        (lambda folder: files(folder)[1].write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
        (lambda folder: only(folder, "config.json", "pytorch_model.bin"), "save_pretrained"),
        (lambda folder: only(folder, "adapter_config.json", "adapter_model.safetensors"), "merge"),
        (lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"), "merge"),
        (lambda folder: only(folder, "model.gguf"), "GGUF"),
        (lambda folder: only(folder, "consolidated.00.pth"), "publisher"),
    ],
)
def test_no_folder_at_all(folder: Path, break_it: Callable[[Path], object], expected: str) -> None:
    break_it(folder)
    assert expected in refused(folder)


def test_tied_and_untied_with_and_without_an_output_matrix(tmp_path: Path) -> None:
    tied = make_folder(tmp_path / "tied", replace(LLAMA, tied=True))
    assert "lm_head.weight" not in open_folder(tied).tensors  # as transformers writes it
    assert open_folder(tied).weights
    # An output matrix that is the same is passed over, one that is not is an error, and so is one that is missing.
    untied = make_folder(tmp_path / "untied", LLAMA)
    edit(untied / "config.json", lambda config: config.update(tie_word_embeddings=True))
    assert all(text in refused(untied) for text in ("lm_head.weight", "model.embed_tokens.weight", "tie_word_embedd"))
    tensors = open_folder(untied).tensors
    tensors["lm_head.weight"].open(writable=True)[...] = tensors["model.embed_tokens.weight"].open()
    assert "output/table" not in open_folder(untied).weights
    edit(tied / "config.json", lambda config: config.update(tie_word_embeddings=False))
    assert all(text in refused(tied) for text in ("lm_head.weight", "missing", "tie_word_embeddings"))


def test_headers_that_lie(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "llama", LLAMA)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    second = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + second])
    name = max(header, key=lambda name: header[name].get("data_offsets", [0])[0])  # the last one, moved onto another
    overlapping = data[8 : 8 + second].replace(
        str(header[name]["data_offsets"]).replace(" ", "").encode(),
        f"[0,{np.prod(header[name]['shape']) * 4}]".encode(),
    )
    overlapping = data[:8] + overlapping.ljust(second) + data[8 + second :]
    for wrong in (
        data.replace(b'"shape":[32,32]', b'"shape":[32,33]'),
        data.replace(b'"shape":[32,32]', b'"shape":[32,-2]'),
        data.replace(b'"F32"', b'"F31"'),
        overlapping,
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ):
        file.write_bytes(wrong)
        assert "model.safetensors" in refused(folder)
    assert np.frombuffer(data[:8], "<u8")[0] % 8 == 0  # the tensors begin where a map may begin


def test_deepseeks_spare_layers_are_passed_over_and_llamas_are_not(tmp_path: Path) -> None:
    latent = LatentConfig(kv_rank=8, nope_dim=8, rope_dim=4, value_dim=6, query_rank=12)
    experts = MoEConfig(4, 2, 8, router="sigmoid", bias=True, num_shared=1, first_dense=1, num_groups=2)
    sizes: dict[str, Any] = dict(num_layers=3, num_kv_heads=4, head_dim=12, latent=latent, moe=experts)
    folder = make_folder(tmp_path / "deepseek", replace(LLAMA, **sizes), "deepseek_v3", shard_bytes=40_000)
    before = open_folder(folder).weights.keys()
    create(folder / "more.safetensors", [("model.layers.3.enorm.weight", "F32", (32,))])
    place = {"model.layers.3.enorm.weight": "more.safetensors"}
    edit(folder / "model.safetensors.index.json", lambda index: index["weight_map"].update(place))
    assert open_folder(folder).weights.keys() == before
    assert "dense_layers/attention/key_up" in before
