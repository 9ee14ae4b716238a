"""The door `plan`: what it prints of a layout, of a search and of serving; files it writes; bad input."""

import json
from pathlib import Path

import pytest

from meshtrain.layout import Layout
from meshtrain.plan import main
from meshtrain.run import config_file

ROOT = Path(__file__).parents[3]
RUN = ["--config", str(ROOT / "configs/runs/llama3_8b.py")]
H100 = ["--cluster", str(ROOT / "configs/clusters/h100_roce.py")]


def layout(name: str) -> list[str]:
    return ["--layout", str(ROOT / f"configs/layouts/{name}.py")]


def test_a_layout_with_all_its_sections(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main([*RUN, *H100, "--gpus", "16", *layout("pipeline_tensor_zero1"), "--layout.pipeline.microbatches=32"]) == 0
    )
    text = capsys.readouterr().out
    for word in (
        "MEMORY",
        "optimizer state",
        "gradient sums",
        "peak",
        "headroom",
        "TIME",
        "MFU",
        "TRAFFIC",
        "PIPELINE",
    ):
        assert word in text
    assert "idle" in text
    assert "tokens/s" in text


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *H100, "--gpus", "8", *layout("zero3_remat"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["verdict"] == "fits"
    kept = sum(part["num_bytes"] for part in found["memory"]["parts"] if not part["transient"])
    assert kept < found["memory"]["peak"] < found["memory"]["limit"]
    assert found["step_seconds"] == pytest.approx(sum(found["parts"].values()))
    assert {row["kind"] for row in found["traffic"]} >= {"all_gather", "reduce_scatter"}


def test_what_does_not_fit_is_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *H100, "--gpus", "8", *layout("ddp")]) == 2
    assert "does not fit" in capsys.readouterr().out


def test_a_search_writes_a_layout_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "layouts" / "found.py"
    assert main([*RUN, *H100, "--gpus", "8", "--write", str(file)]) == 0
    text = capsys.readouterr().out
    assert "ORDER OF DECISIONS" in text
    assert "1. Does all of it fit one GPU?" in text
    assert "THE BEST" in text
    found = Layout.parse(config_file.read(str(file), "--layout").values, "found")
    assert found.mesh.resolve(8) == {"data": 8}
    assert "Use it for" in file.read_text()
    assert main([*RUN, *H100, "--gpus", "8", "--layout", str(file)]) == 0


def test_a_price_makes_a_bill(capsys: pytest.CaptureFixture[str]) -> None:
    """Steps x seconds x GPUs x price, over what failures leave of the time."""
    arguments = [*RUN, *H100, "--gpus", "8", *layout("zero3_remat"), "--price", "2.50 USD per GPU-hour", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    hours = found["run"]["steps"] * found["step_seconds"] / 3600 / found["goodput"]["share"]
    assert found["run"]["gpu_hours"] == pytest.approx(8 * hours)
    assert found["run"]["usd"] == pytest.approx(8 * hours * 2.5)


def test_muons_iterations_are_a_line_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    plans = []
    for name in ("muon", "adamw"):
        assert main([*RUN, *H100, "--gpus", "8", *layout("zero3_remat"), f"--config.optimizer.name={name}"]) == 0
        time = capsys.readouterr().out.split("TIME")[1].split("TRAFFIC")[0]
        plans.append({line.split()[0] for line in time.splitlines() if line})
    assert plans[0] - plans[1] >= {"muon", "matrices"}


def test_serving(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, *H100, "--gpus", "8", "--serving"]) == 0
    text = capsys.readouterr().out
    assert "--data-parallel-size 8" in text
    assert "KV cache" in text
    assert main([*RUN, *H100, "--gpus", "8", "--serving", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensor"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*RUN, *H100], "--gpus: missing"),
        ([*RUN, "--gpus", "8"], "--cluster: missing"),
        ([*RUN, "--cluster", "configs/clusters/h100.py", "--gpus", "8"], "there is no such file"),
        ([*RUN, "--cluster", "h100_roce", "--gpus", "8"], "such as --cluster configs/clusters/h100_roce.py"),
        ([*RUN, *H100, "--gpus", "8", *layout("zero3_remat"), "--price", "2.5"], "--price='2.50 USD per GPU-hour'"),
        ([*RUN, *H100, "--gpus", "12"], "8 or 16 would work"),
        ([*RUN, *H100, "--gpus", "8", "--serving", *layout("zero3")], "leave --layout out"),
        ([*RUN, *H100, "--gpus", "8", "--config.model.num_layers=4000"], "What would help"),
        ([*RUN, *H100, "--gpus", "6", *layout("tensor")], "mesh.data"),
        ([*RUN, *H100, "--gpus", "8", *layout("zero3"), "--write", "x.py"], "leave --layout"),
        ([*RUN, *H100, "--gpus", "eight"], "whole number"),
    ],
)  # fmt: skip
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
