"""`convert` and `init`: folders in and out through the doors, and runs that begin with one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain import convert, train
from meshtrain.errors import InputError
from meshtrain.run import convert as work
from tests.io.hf.made import LLAMA, make_folder, numbers_of
from tests.run.runs import LAYOUTS, MODEL, write_run

FLAGS = ["--config.cpu_devices=8", "--config.steps=2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Llama folder with the sizes of the tests' runs, in two files, with a tokenizer's file beside them."""
    made = make_folder(tmp_path / "llama", LLAMA, shard_bytes=40_000)
    (made / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    (made / "generation_config.json").write_text('{"temperature": 0.6}')
    (made / "chat_template.jinja").write_text("{{ messages }}")
    return made


def said(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    return out + err


@pytest.mark.parametrize("layout", [None, "rows_columns", "pipeline_1f1b"])
def test_imported_and_exported_again(folder: Path, tmp_path: Path, layout: str | None) -> None:
    flags = [] if layout is None else ["--layout", str(LAYOUTS / f"{layout}.py")]
    assert convert.main(["import", str(folder), "--to", str(tmp_path / "run"), *flags]) == 0
    assert convert.main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out"), "--step", "0"]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "model.safetensors",
    }  # fmt: skip
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
    old, new = numbers_of(folder), numbers_of(tmp_path / "out")
    assert old.keys() == new.keys()
    assert all(np.array_equal(old[name], new[name]) for name in old)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text()) == json.loads((tmp_path / "out" / name).read_text())


def test_a_run_starts_from_a_folder_and_its_export_is_what_it_trained(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The vocabulary of 67 is padded on two devices, and nobody sees it outside.
    layout = str(LAYOUTS / "tensor_zero3.py")
    run = write_run(tmp_path, init=str(folder), model={}, layout=layout, checkpoint={"every": 1, "keep_last": 5})
    assert train.main([*run, *FLAGS]) == 0, said(capsys)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["model"]
    assert stored["embed"] == MODEL["embed"]
    assert stored["rope_theta"] == 20000.0  # the folder's, not the default
    # Adam moves a weight by about the learning rate, 1e-2, in a step: these are still the weights of the folder.
    for step in (1, 2):
        to = tmp_path / f"out{step}"
        assert convert.main(["export", str(tmp_path / "run"), "--to", str(to), "--step", str(step)]) == 0
        before, after = numbers_of(folder), numbers_of(to)
        assert {name: x.shape for name, x in before.items()} == {name: x.shape for name, x in after.items()}
        largest = max(float(np.abs(before[name] - after[name]).max()) for name in before)
        assert 0 < largest <= step * 2e-2
        assert (to / "tokenizer_config.json").exists()
    # The folder may be gone when the run goes on: the run knows its model.
    shutil.move(folder, tmp_path / "elsewhere")
    assert train.main([*run, "--config.cpu_devices=8", "--config.steps=3"]) == 0, said(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_that_its_axis_does_not_divide(
    tied: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """257 rows over 4 devices: padded there and nowhere else, and no padded row gets a share of the loss."""
    folder = make_folder(tmp_path / "llama", replace(LLAMA, vocab=257, tied=tied))
    names = {"model.embed_tokens.weight"} | ({"lm_head.weight"} if not tied else set())
    losses = {}
    for layout in ("tensor", "single"):
        init = tmp_path / f"imported_{layout}"
        flags = ["--layout", str(LAYOUTS / f"{layout}.py")]
        assert convert.main(["import", str(folder), "--to", str(init), *flags]) == 0, said(capsys)
        assert convert.main(["export", str(init), "--to", str(tmp_path / f"same_{layout}")]) == 0
        before, same = numbers_of(folder), numbers_of(tmp_path / f"same_{layout}")
        assert before.keys() == same.keys()
        assert all(np.array_equal(before[name], same[name]) for name in before)
        run = write_run(tmp_path / layout, init=str(init), model={}, layout=str(LAYOUTS / f"{layout}.py"))
        assert train.main([*run, f"--config.cpu_devices={8 if layout == 'tensor' else 1}", "--config.steps=2"]) == 0
        lines = (tmp_path / layout / "run" / "metrics.jsonl").read_text().splitlines()
        losses[layout] = [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]
        to = tmp_path / f"after_{layout}"
        assert convert.main(["export", str(tmp_path / layout / "run"), "--to", str(to)]) == 0, said(capsys)
        after = numbers_of(to)
        assert {name for name in after if len(after[name]) == 257} == names
        assert {name: x.shape for name, x in after.items()} == {name: x.shape for name, x in before.items()}
        assert all((after[name] != before[name]).any() for name in after)
    # Seven padded rows of zeros among 264 would add 0.03 to a loss of log(257).
    assert losses["tensor"] == pytest.approx(losses["single"], rel=1e-5)


@pytest.mark.slow
def test_a_run_starts_from_an_imported_folder(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same first step as from the Hugging Face folder itself."""
    assert convert.main(["import", str(folder), "--to", str(tmp_path / "imported")]) == 0
    losses = []
    for name, init in (("one", folder), ("two", tmp_path / "imported")):
        run = write_run(tmp_path / name, init=str(init), model={"max_length": 32})
        assert train.main([*run, "--config.cpu_devices=8", "--config.steps=1"]) == 0, said(capsys)
        lines = (tmp_path / name / "run" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)])
        assert (tmp_path / name / "run" / "hf" / "tokenizer_config.json").exists()
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (dict(embed=64), ["model.embed=64", "32", "llama"]),
        (dict(rope_theta=1e6), []),
        (dict(norm_eps=1e-3), ["model.norm_eps", "1e-05"]),
    ],
)
def test_a_model_that_is_not_the_folders(
    folder: Path, tmp_path: Path, change: dict[str, Any], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, init=str(folder), model=change)
    from meshtrain.run.arguments import parse
    from meshtrain.run.config import load

    if not expected:
        assert load(parse(run)).config.model.rope_theta == 1e6
        return
    with pytest.raises(InputError) as error:
        load(parse(run))
    assert all(text in str(error.value) for text in expected)


def test_a_damaged_folder_stops_a_run_and_an_import_before_anything_is_made(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = sorted(folder.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-8])
    assert train.main([*write_run(tmp_path, init=str(folder), model={}), *FLAGS]) == 2
    assert convert.main(["import", str(folder), "--to", str(tmp_path / "imported")]) == 2
    text = said(capsys)
    assert text.count(file.name) == 2
    assert text.count("truncated") == 2
    assert not list(tmp_path.glob("*imported*"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["inport", "x"], "import or export"),
        (["import", "x"], "--to"),
        (["import", "/nowhere", "--to", "y"], "no such folder"),
        (["export", "/nowhere", "--to", "y"], "not a run's folder"),
        (["export", "x", "--to", "y", "--stop", "3"], "--step"),
        (["export", "x", "--to", "y", "--gpus", "8"], "--cluster"),
    ],
)
def test_wrong_arguments(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(arguments) == 2
    assert expected in said(capsys)


def test_sizes() -> None:
    assert [work.parse_size(text) for text in ("5GB", "2GiB", "300", "1.5kb")] == [5 * 10**9, 2**31, 300, 1500]
    for text in ("many", "0.1", f"{'9' * 400}GB"):
        with pytest.raises(InputError, match="shard-size"):
            work.parse_size(text)
    with pytest.raises(InputError, match="--step"):
        work.parse_step("9" * 5000)


@pytest.mark.slow
def test_a_run_from_nothing_is_exported_with_the_tokenizer_of_its_corpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text in, a folder out that says how its texts end; and a run from there warns of data of another tokenizer."""
    (tmp_path / "text.txt").write_text("a b c d e f g " * 100)
    data: dict[str, Any] = {"paths": [str(tmp_path / "corpus")], "length": 16}
    data["prepare"] = {"input": [str(tmp_path / "text.txt")], "tokenizer": "byte", "held_out": 0}
    run = write_run(tmp_path, data=data, model=MODEL | {"vocab": 257, "qk_norm": True})
    assert train.main([*run, *FLAGS]) == 0, said(capsys)
    serve_on = ["--cluster", str(LAYOUTS.parent / "clusters" / "h100_roce.py"), "--gpus", "8"]
    assert convert.main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "out"), *serve_on]) == 0, said(capsys)
    assert f"vllm serve {tmp_path / 'out'}" in said(capsys)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["model_type"], config["torch_dtype"], config["eos_token_id"]) == ("qwen3", "float32", 256)
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"] == 256
    assert numbers_of(tmp_path / "out")["model.embed_tokens.weight"].shape == (257, 32)
    kept = tmp_path / "run" / "hf"  # the name of what an import brings along, and nothing of that kind
    for to in (kept, tmp_path / "third"):
        assert convert.main(["export", str(tmp_path / "run"), "--to", str(to)]) == 0, said(capsys)
    (kept / "record.json").write_text("{}")
    assert convert.main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "fourth")]) == 2
    assert "is not whole (KeyError('dtype'))" in said(capsys)
    shutil.rmtree(kept)
    for tokenizer, warned in ((None, False), ("{}", True)):
        if tokenizer is not None:
            (tmp_path / "out" / "tokenizer.json").write_text(tokenizer)
        name = f"again_{warned}"
        again = write_run(tmp_path / name, data=data, model={}, init=str(tmp_path / "out"), global_batch=8)
        assert train.main([*again, "--config.cpu_devices=8", "--config.steps=1"]) == 0, said(capsys)
        assert ("another tokenizer" in said(capsys)) == warned
