"""The door: on CPU devices it prints the ledger and says what it cannot tell; what is wrong is one clear sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshtrain.audit.__main__ import main
from meshtrain.run.audit.report import options, short_name

ROOT = Path(__file__).parents[3]
RUN = ["--config", "configs/runs/quickstart.py", "--layout", "configs/layouts/tensor.py"]
ON = ["--cluster", "configs/clusters/h100_roce.py", "--gpus", "8"]
SMALL = ["--config.model.num_layers=1", "--config.data.length=64", "--config.global_batch=8"]


@pytest.mark.slow
def test_on_cpu_devices(tmp_path: Path) -> None:
    budget = tmp_path / "budget.py"
    budget.write_text('def get_config():\n    return dict(wire="1 B")\n')
    command = [
        sys.executable,
        "-m",
        "meshtrain.audit",
        *RUN,
        *SMALL,
        *ON,
        "--backend",
        "cpu",
        "--json",
        "--budget",
        budget,
    ]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 8, done.stderr[-2000:]
    assert "bytes sent in a step" in done.stderr
    found = json.loads(done.stdout)
    assert found["mesh"] == {"data": 2, "tensor": 4}
    assert any("reduce-scatter" in line for line in found["cannot_tell"])
    sums = [line for line in found["ledger"] if line["why"].startswith("stream out of") and line["status"] != "missing"]
    assert {line["kind"] for line in sums} == {"all_reduce"}
    assert found["found_wire_bytes"] > 0
    assert [line.partition(":")[0] for line in found["exceeded"]] == ["bytes sent in a step"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([*RUN, "--gpus", "8"], "--cluster: missing"),
        ([*RUN, *ON[:2]], "--gpus: missing"),
        ([*RUN, *ON, "--backend", "tpu"], "not one of gpu, cpu"),
        ([*RUN, *ON[:3], "4096", "--backend", "cpu"], "2,048 would"),
        (["configs/layouts/tensor.py"], "did you mean --layout"),
    ],
)
def test_what_is_wrong(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_names_of_clusters_and_flags() -> None:
    assert short_name("H100 SXM") == "h100"
    assert options(("--xla_gpu_x=true", "--xla_gpu_y=5")) == {"xla_gpu_x": True, "xla_gpu_y": "5"}
