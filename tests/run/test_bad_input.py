"""Bad input through the door: one message on standard error, an exit code that is not 0, nothing overwritten."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.runs import LAYOUTS, MODEL, ROOT, Process, run_here, write_run

LAYOUT_ERRORS = [
    (["--layout.mesh.data=3", "--config.cpu_devices=8"], ["mesh", "3", "8"]),
    (["--layout.mesh.data=3"], ["global_batch: 8", "3 parts", "9 would work"]),
    (["--layout.mesh.more=-1"], ["-1"]),
    (["--layout.mash.data=3"], ["mash", "mesh"]),
    (["--layout.rules.btach=data"], ["btach", "batch"]),
    (["--layout.rules.mlp=dta"], ["dta", "data"]),
    (["--layout.accumulate=3"], ["global_batch", "3"]),
    (["--config.global_batch=6"], ["global_batch", "6", "8"]),
    (["--layout.remat=ful"], ["'ful'", "full"]),
    (["--config.model.embed=36"], ["embed", "36", "8"]),
    (["--config.model.vocab=2000000000"], ["weights and moments take", " TB on 8 CPU devices", "meshtrain[cuda13]"]),
]
OTHER_ERRORS = [
    (["--config.data.kind=tokens"], ["data.paths"]),
    (["--config.data.kind=tokens", "--config.data.paths=/nowhere/data"], ["/nowhere/data"]),
    (["--config.init=/nowhere"], ["/nowhere", "no whole checkpoint", "no such folder"]),
    (["--config.stepz=3"], ["config.stepz", "'config.steps'"]),
    (["--steps=3"], ["'--config.steps=3'"]),
    (["--config=/nowhere.py"], ["twice"]),
    (["--config.workdir=/tmp/" + "x" * 300], ["config.workdir=/tmp/xx", "305 characters", "too long"]),
    (["--config.init=~nobody-of-this-name/x"], ["config.init=~nobody-of-this-name/x", "no such home"]),
    (["--layout", "x" * 300], ["--layout=xx", "too long"]),
    (["--config.cluster=" + "x" * 300], ["config.cluster=xx", "too long"]),
    (["--config.workdir=runs/lr=[1e-3]"], ["lr=[1e-3]", "cannot be saved in a folder with [ in its path"]),
]


@pytest.mark.parametrize(("flags", "words"), LAYOUT_ERRORS + OTHER_ERRORS)
def test_bad_input_is_one_message(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], words: list[str]
) -> None:
    assert run_here(*write_run(tmp_path), *here, *flags) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err + captured.out
    assert not (tmp_path / "run" / "checkpoints").exists()
    for word in words:
        assert word in captured.err


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path)
    mine = tmp_path / "run" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert run_here(*run, *here) == 2
    assert "belongs to something else" in capsys.readouterr().err
    assert [path.name for path in mine.parent.iterdir()] == ["thesis.tex"]
    (mine.parent / "config.json").write_text('{"is": "another program"}')
    assert run_here(*run, *here) == 2
    assert (mine.parent / "config.json").read_text() == '{"is": "another program"}'
    assert run_here(*run, *here, f"--config.workdir={mine}") == 2
    assert "is a file" in capsys.readouterr().err
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("workdir", ["/proc/meshtrain/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_a_storage_error(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str], workdir: str
) -> None:
    assert run_here(*write_run(tmp_path), *here, f"--config.workdir={workdir}") == 4
    assert re.fullmatch(rf"error: config\.workdir={workdir} cannot be written: .*\n", capsys.readouterr().err)


def test_help_is_text_about_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here("--help") == 0
    out = capsys.readouterr().out
    assert "python -m meshtrain.train --config configs/runs/quickstart.py" in out
    assert re.search(r"config\.optimizer\.learning_rate +float +0\.0003", out)
    assert re.search(r"config\.model\.num_layers +int +\(must be given\)", out)
    assert "5    stopped by a signal, and saved" in out


def test_importing_the_door_loads_nothing_heavy() -> None:
    heavy = "{'jax', 'flax', 'optax', 'orbax', 'grain', 'tensorboardX', 'tokenizers', 'numpy', 'ml_collections'}"
    code = f"import sys, meshtrain.train; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_bad_input_of_a_real_process(tmp_path: Path) -> None:
    process = Process(*write_run(tmp_path), "--config.optimizer.learning_rat=1")
    assert process.finish() == 2
    assert process.output.startswith("error: config.optimizer.learning_rat: there is no such key. Did you mean")
    assert process.output.count("\n") == 1


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_the_last_good_step_stays(tmp_path: Path, cache: Path) -> None:
    """The disk is full for checkpoints from the second start on: no file may grow beyond 16 kB."""
    run = write_run(tmp_path, model=MODEL | {"vocab": 512}, layout=str(LAYOUTS / "single.py"), cpu_devices=1)
    first = Process(*run, "--config.steps=3", cache=cache)
    assert first.finish() == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()

    limit = (1 << 14, 1 << 14)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit[0], before[1]))
    try:
        second = Process(*run, "--config.steps=1000", cache=cache)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert second.finish() == 4, second.output
    assert re.search(r"^error: a checkpoint could not be saved in .*", second.output, re.M)
    assert "Traceback" not in second.output
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith(metrics)
    third = Process(*run, "--config.steps=4", cache=cache)
    assert third.finish() == 0
    assert "restoring step 3" in third.output
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step_00000003", "step_00000004"]
