"""A run's config as a whole: forms of numbers by file and flag (case G1), the declared split, unusual values."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.run.arguments import parse
from meshtrain.run.config import MATHEMATICS, RunConfig, differences, load, mathematics
from tests.run.runs import LAYOUTS, MODEL, RUN, write_run


def loaded(folder: Path, *flags: str, **changes: Any) -> RunConfig:
    return load(parse([*write_run(folder, **changes), *flags])).config


@pytest.mark.parametrize(
    ("key", "value", "forms"),
    [
        ("optimizer.learning_rate", 1e-4, ["1e-4", "1E-4", ".0001"]),
        ("optimizer.learning_rate", 4e7, ["4e07"]),
        ("steps", 10, ["10", "10.0", "1e1"]),
        ("model.num_layers", 10, ["10.0"]),
        ("optimizer.clip", None, ["None", "none"]),
    ],
)
def test_a_file_and_a_flag_spell_the_same_value(tmp_path: Path, key: str, value: Any, forms: list[str]) -> None:
    *sections, last = key.split(".")
    for form in forms:
        by_file: Any = form if value is None else (float(form) if "learning" in key else form)
        for name in [last]:
            changes = {name: by_file} if not sections else {sections[0]: {**RUN.get(sections[0], {}), last: by_file}}
        for config in (loaded(tmp_path, f"--config.{key}={form}"), loaded(tmp_path, **changes)):
            got: Any = config
            for part in key.split("."):
                got = getattr(got, part)
            assert got == value
            assert type(got) is type(value)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--config.steps=10.5", ["config.steps='10.5'", "integer", "fraction"]),
        ("--config.optimizer.learning_rat=1", ["config.optimizer.learning_rat", "'config.optimizer.learning_rate'"]),
        ("--config.learning_rate=1", ["'config.optimizer.learning_rate'"]),
        ("--config.model.nun_layers=1", ["'config.model.num_layers'"]),
        ("--config.optimizer.learning_rate=-1", ["config.optimizer: learning_rate=-1.0"]),
        ("--config.precision.compute=bf16", ["config.precision.compute", "bfloat16"]),
        ("--config.data.length=65", ["config.data.length: 65", "data.length=64 would work"]),
        ("--config.global_batch=0", ["config.global_batch: 0 must be at least 1"]),
        ("--config.global_batch=1099511627776", ["config.global_batch: 1099511627776", "at most 67108864 would work"]),
        ("--config.cpu_devices=100000", ["config.cpu_devices: 100000", "at most 4096 would work"]),
        ("--config.model.num_layers=1000000000", ["config.model.num_layers: 1000000000 layers", "100000"]),
        ("--config.model.vocab=4294967296", ["config.model.vocab: 4294967296 ids do not fit", "2147483648"]),
        ("--config.seed=-1", ["config.seed"]),
        ("--config.seed=4294967296", ["below 2**32"]),
        ("--config.optimizer.learning_rate=inf", ["config.optimizer.learning_rate: inf"]),
        ("--config.model.rope_theta=1e400", ["config.model.rope_theta: inf"]),
        ("--config.peak_flops=0", ["config.peak_flops: 0.0 must be above 0"]),
        ("--config.optimizer.schedule.steps=-1", ["config.optimizer.schedule.steps: -1", "at least 1"]),
        ("--config.optimizer.b1=1", ["config.optimizer.b1: 1.0"]),
        ("--config.profile=5", ["config.profile: '5'", "10:12"]),
        ("--config.profile=5:3", ["config.profile"]),
        ("--config.model.num_kv_heads=3", ["config.model.num_kv_heads: 4 query heads"]),
        ("--config.model.rope_scaling={'kind': 'yarn', 'factor': 0.5}", ["config.model.rope_scaling.factor: 0.5"]),
        ("--config.init=/nowhere --config.model=tiny", ["config.model='tiny'", "a section of keys"]),
        ("--config.steps.more=1", ["config.steps is 8, not a section"]),
        ("--config.layout=nowhere.py", ["config.layout=nowhere.py: there is no such file"]),
        ("--layout=nowhere.py", ["--layout=nowhere.py: there is no such file"]),
    ],
)
def test_a_bad_value_is_named_with_a_way_out(tmp_path: Path, flag: str, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        loaded(tmp_path, *re.split(" (?=--)", flag))
    for word in words:
        assert word in str(error.value)


def test_what_is_unusual_warns(tmp_path: Path) -> None:
    request = load(parse([*write_run(tmp_path), "--config.optimizer.learning_rate=4e07"]))
    assert request.warnings == (
        "config.optimizer.learning_rate=4e+07 is far outside of what usually trains (1e-07 to 0.5)",
    )
    (warning,) = load(parse([*write_run(tmp_path), "--config.profile=10:12"])).warnings
    assert warning == "config.profile=10:12 begins behind the last step (config.steps=8)"
    assert load(parse([*write_run(tmp_path), "--config.profile=8:12"])).warnings == ()


def test_layout_flags_are_literals_and_add_free_names(tmp_path: Path) -> None:
    argv = [
        *write_run(tmp_path), "--layout", str(LAYOUTS / "ddp.py"), "--layout.mesh.data=4.0", "--layout.mesh.mine=2",
        "--layout.rules.mlp=('mine',)", "--layout.remat=none", "--layout.rules.batch=None", "--layout.accumulate=2.0",
        "--layout.pipeline.microbatches=4.0", "--layout.pipeline.layers=[3.0, 4]",
    ]  # fmt: skip
    layout = load(parse(argv)).layout
    assert layout["mesh"] == {"data": 4, "mine": 2}
    assert all(type(size) is int for size in layout["mesh"].values())
    assert (layout["rules"], layout["remat"], layout["accumulate"]) == ({"batch": None, "mlp": ("mine",)}, "none", 2)
    assert layout["pipeline"] == {"microbatches": 4, "layers": [3, 4]}
    assert all(type(size) is int for size in (layout["pipeline"]["microbatches"], *layout["pipeline"]["layers"]))


def test_a_run_names_its_layout_from_the_root_of_its_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path, layout="configs/layouts/own.py")
    (tmp_path / "configs" / "layouts").mkdir()
    (tmp_path / "configs" / "layouts" / "own.py").write_text(
        '"""Mine."""\ndef get_config():\n    return {"mesh": {}}\n'
    )
    monkeypatch.chdir("/")
    request = load(parse(run))
    assert (request.layout, request.layout_name, request.layout_doc) == ({"mesh": {}}, "own", "Mine.")


def test_the_split_covers_every_key_and_only_what_changes_numbers(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    fields = [field.name for field in dataclasses.fields(RunConfig)]
    assert set(MATHEMATICS) < set(fields)
    assert set(fields) - set(MATHEMATICS) == {
        "steps", "workdir", "layout", "checkpoint", "eval_every", "eval_batches", "log_every", "tensorboard",
        "profile", "max_skipped", "cpu_devices", "compilation_cache", "peak_flops", "cluster", "watch",
    }  # fmt: skip
    same = ["--config.steps=99", "--config.workdir=x", "--config.cpu_devices=2", "--config.data.verify=true"]
    assert differences(mathematics(config), mathematics(loaded(tmp_path, *same))) == []
    assert differences(mathematics(config), mathematics(loaded(tmp_path, "--config.z_loss=1e-4"))) == [
        "z_loss: 0.0 -> 0.0001"
    ]
    assert differences(mathematics(config, ["a"]), mathematics(config, ["b"])) == ["data.contents: ['a'] -> ['b']"]


def test_the_end_of_the_schedule_is_mathematics_however_it_is_given(tmp_path: Path) -> None:
    open_end = {"optimizer": {"learning_rate": 1e-2}}
    a, b = (mathematics(loaded(tmp_path, f"--config.steps={n}", **open_end)) for n in (8, 9))
    assert differences(a, b) == ["optimizer.schedule.steps: 8 -> 9"]
    c = mathematics(loaded(tmp_path, "--config.steps=9", "--config.optimizer.schedule.steps=8", **open_end))
    assert differences(a, c) == []


def test_a_key_that_one_side_does_not_know_counts_as_off() -> None:
    assert differences({"a": 1}, {"a": 1, "new": None, "more": {"x": False, "y": 0}}) == []
    assert differences({"a": 1}, {"a": 1, "new": 2}) == ["new: None -> 2"]
    assert differences({"a": 1, "gone": True}, {"a": 1}) == ["gone: True -> None"]
    assert differences({"a": 1}, {"a": None}) == ["a: 1 -> None"]


def test_the_model_of_these_tests_is_the_one_that_is_built(tmp_path: Path) -> None:
    assert {key: getattr(loaded(tmp_path).model, key) for key in MODEL} == MODEL
