"""The script for machines with GPUs, rehearsed on the CPU: every part reports, and a wrong number ends it with 1."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_reports() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gpu_smoke.py", "--rehearse"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr[-2000:]
    assert [line["part"] for line in found] == ["machine", "numbers", "speed", "kernels", "kernels", "kernels"]
    assert all(line["ok"] for line in found)
    assert found[1]["text"].count(" equal") == 1
    measured = found[2]
    assert measured["seconds"] > 0
    assert measured["planned_seconds"] > 0
    assert all(0 < off < 0.03 for line in found[3:] for off in line["off"])


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/gpu_smoke.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={"JAX_PLATFORMS": "cpu", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 1
    assert "finds no GPU here: is the cuda13 extra installed? --rehearse tries the script." in done.stderr
