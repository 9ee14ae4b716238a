"""A run that is taken up again is the unbroken run, or it is refused with what differs (cases K1, K4, K5)."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest

from meshtrain.io import checkpoint_folder
from meshtrain.run import startup
from meshtrain.run.arguments import parse
from meshtrain.run.config import load
from meshtrain.step import learning_rate
from tests.run.corpus import prepare_bytes
from tests.run.runs import LAYOUTS, MODEL, numbers, records, restored, run_here, write_run


@pytest.mark.parametrize("stops", [(2, 3), (3, 6), (7,)])
def test_a_run_in_pieces_is_bitwise_the_unbroken_one(
    tmp_path: Path, here: list[str], unbroken: Path, stops: tuple[int, ...]
) -> None:
    run = write_run(tmp_path)
    for stop in (*stops, 8):
        assert run_here(*run, *here, f"--config.steps={stop}") == 0
    assert numbers(tmp_path) == numbers(unbroken)


def test_the_comparison_of_pieces_bites(
    tmp_path: Path, here: list[str], unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments that were lost on the way would be seen, bitwise and by more than CLOSE allows."""
    run = write_run(tmp_path)
    assert run_here(*run, *here, "--config.steps=3") == 0
    right = startup.first_state

    def forgetful(*arguments: Any) -> Any:
        state = right(*arguments)
        state.opt_state = jax.tree.map(lambda x: x * 0, state.opt_state)
        return state

    monkeypatch.setattr(startup, "first_state", forgetful)
    assert run_here(*run, *here) == 0
    assert numbers(tmp_path)[:4] == numbers(unbroken)[:4]
    assert numbers(tmp_path)[4:] != numbers(unbroken)[4:]
    assert abs(records(tmp_path)[8]["loss"] - records(unbroken)[8]["loss"]) > 5e-5


STAGES = ["--layout.mesh.data=2", "--layout.mesh.stages=2", "--layout.rules.layers=stages"]


@pytest.mark.parametrize(
    ("layout", "devices", "flags"),
    [
        ("single", 1, []),
        ("zero3", 4, []),
        pytest.param("tensor", 4, ["--layout.mesh.tensor=4"], marks=pytest.mark.slow),
        pytest.param("tensor_zero3", 8, [], marks=pytest.mark.slow),
        pytest.param("context_ring_zigzag", 8, [], marks=pytest.mark.slow),
        pytest.param("ddp", 4, [*STAGES, "--layout.pipeline.microbatches=2"], marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_under_another_layout(
    tmp_path: Path, here: list[str], unbroken: Path, layout: str, devices: int, flags: list[str]
) -> None:
    """Case K1, CLOSE: losses within 1e-5 of the unbroken run."""
    run = write_run(tmp_path)
    assert run_here(*run, *here, "--config.steps=5") == 0
    assert run_here(*run, *here, f"--layout={LAYOUTS / layout}.py", f"--config.cpu_devices={devices}", *flags) == 0
    assert numbers(tmp_path, "loss")[:5] == numbers(unbroken, "loss")[:5]
    losses = [[record["loss"] for record in records(folder).values()] for folder in (tmp_path, unbroken)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    exact = ("step", "learning_rate", "tokens", "skipped")
    assert numbers(tmp_path, *exact) == numbers(unbroken, *exact)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_learning_rates_follow_the_formula_through_resumes(tmp_path: Path, here: list[str], accumulate: int) -> None:
    """Case K5: warm-up 3, cosine to 20; trainer step, optimizer count, folder name and data position agree."""
    run = write_run(tmp_path, checkpoint={"every": 100, "keep_last": 10}, layout=str(LAYOUTS / "single.py"))
    run += [f"--layout.accumulate={accumulate}", "--config.cpu_devices=1"]
    config = load(parse(run)).config
    for stop in (2, 3, 19, 20):
        assert run_here(*run, *here, f"--config.steps={stop}") == 0
        saved = checkpoint_folder.newest(tmp_path / "run" / "checkpoints", print)
        assert saved is not None
        assert (saved.step, saved.record["rows"]) == (stop, stop * 8)
        state = restored(saved, config)
        counts = [int(value) for name, value in state.items() if name.endswith("count") or name == "step"]
        assert len(counts) >= 2
        assert set(counts) == {stop}
    formula = [learning_rate(1e-2, config.optimizer.schedule, step, 20) for step in range(20)]
    assert [record["learning_rate"] for record in records(tmp_path).values()] == formula
    assert formula[0] == 1e-2 / 3
    assert formula[2] == formula[3] == 1e-2
    assert formula[19] == pytest.approx(1e-3)


def test_weights_of_another_run_may_start_a_new_one(
    tmp_path: Path, here: list[str], unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, init=str(unbroken / "run"))
    capsys.readouterr()
    assert run_here(*run, *here, "--config.steps=1") == 0
    out = capsys.readouterr().out
    assert "weights of step 8 from" in out
    assert "optimizer state, step and position in the data start anew" in out
    assert numbers(tmp_path, "loss") != numbers(unbroken, "loss")[:1]
    assert numbers(tmp_path, "learning_rate") == numbers(unbroken, "learning_rate")[:1]


def test_weights_of_another_shape_are_listed(
    tmp_path: Path, here: list[str], unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case K4."""
    run = write_run(tmp_path, init=str(unbroken / "run"), model=MODEL | {"num_layers": 3, "tied": True})
    assert run_here(*run, *here) == 2
    message = capsys.readouterr().err
    assert "does not fit this model" in message
    assert "float32[2, 32, " in message
    assert "float32[3, 32, " in message


def copy(unbroken: Path, folder: Path) -> list[str]:
    """The finished run in a folder of its own; the arguments that go on with it."""
    shutil.copytree(unbroken / "run", folder / "run")
    return write_run(folder)


def test_a_finished_run_has_nothing_to_do(
    tmp_path: Path, here: list[str], unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here(*copy(unbroken, tmp_path), *here) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert numbers(tmp_path) == numbers(unbroken)


MATHEMATICS = [
    ("--config.seed=1", "seed: 0 -> 1"),
    ("--config.optimizer.learning_rate=0.02", "optimizer.learning_rate: 0.01 -> 0.02"),
    ("--config.model.num_layers=3", "model.num_layers: 2 -> 3"),
    ("--config.model.tied=true", "model.tied: False -> True"),
    ("--config.model.vocab=80", "model.vocab: 64 -> 80"),
    ("--config.optimizer.name=muon", "optimizer.name: 'adamw' -> 'muon'"),
    ("--config.global_batch=16", "global_batch: 8 -> 16"),
    ("--config.data.length=32", "data.length: 16 -> 32"),
    ("--config.optimizer.schedule.steps=30", "--config.optimizer.schedule.steps=20"),
    ("--config.precision.compute=bfloat16", "precision.compute: 'float32' -> 'bfloat16'"),
]


def test_a_resume_with_other_mathematics_is_refused_with_the_differences(
    tmp_path: Path, here: list[str], unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case K4."""
    run = copy(unbroken, tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for flag, line in MATHEMATICS:
        assert run_here(*run, *here, "--config.steps=9", flag) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: config.workdir=")
        assert line in message
        assert "--config.workdir=" in message
    del before[tmp_path / "run" / ".lock"]
    assert {path: path.read_bytes() for path in before} == before


def test_the_same_data_may_move_and_other_data_is_refused(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, data=prepare_bytes(tmp_path / "one"), model=MODEL | {"vocab": 257})
    assert run_here(*run, *here, "--config.steps=2") == 0
    prepare_bytes(tmp_path / "other", words="means")
    for folder, code in (("other", 2), ("moved", 0)):
        if folder == "moved":
            (tmp_path / "one").rename(tmp_path / "moved")
        paths = f"--config.data.paths={tmp_path / folder / 'prepared'}"
        assert run_here(*run, *here, "--config.steps=3", paths) == code
    assert "data.contents: [" in capsys.readouterr().err
    assert sorted(records(tmp_path)) == [1, 2, 3]


def test_a_mixture_changes_from_now_on_and_the_decision_is_kept(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What lies behind may not be changed; what lies ahead is as if it had been so from the start."""
    data = prepare_bytes(tmp_path / "a") | {"weights": [1, 1]}
    data["paths"] += prepare_bytes(tmp_path / "b", words="means")["paths"]
    model = MODEL | {"vocab": 257}
    run = write_run(tmp_path, data=data, model=model)
    assert run_here(*run, *here, "--config.steps=3") == 0
    before = records(tmp_path)
    assert run_here(*run, *here, "--config.steps=6", "--config.data.changes=[(16, (1, 3))]") == 2
    assert "data.changes: [] -> [[16, [1.0, 3.0]]]" in capsys.readouterr().err
    change = "--config.data.changes=[(24, (1, 3))]"
    assert run_here(*run, *here, "--config.steps=6", change) == 0
    assert run_here(*run, *here, "--config.steps=8") == 2  # it is part of the run now
    assert run_here(*run, *here, "--config.steps=8", change) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert [(each["rows"], each["data.changes"]) for each in stored["decisions"]] == [(24, [[], [[24, [1.0, 3.0]]]])]
    assert {step: record for step, record in records(tmp_path).items() if step <= 3} == before
    whole = write_run(tmp_path / "whole", data=data, model=model)
    assert run_here(*whole, *here, "--config.steps=8", change) == 0
    assert numbers(tmp_path) == numbers(tmp_path / "whole")


def test_steps_that_are_done_again_are_said(
    tmp_path: Path, here: list[str], unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder of checkpoints is gone (a disk that is not there): the run begins anew, and not in silence."""
    shutil.copytree(unbroken / "run", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert run_here(*write_run(tmp_path), *here, "--config.steps=1") == 0
    said = "going on from the beginning, for there is no whole checkpoint: 8 steps that are on record are done again"
    assert said in capsys.readouterr().out
