"""What each layout sends, compiled for H100s, is what was last reviewed: as planned to 2 %, or with a reason.

`python scripts/refresh_goldens.py` writes the ledgers anew (with the cuda13 extra; no GPU is needed).
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.goldens.ledgers import FOLDER, ROOT, layouts

# Compiled in every run of the tests: together they have every kind of exchange. The rest are read, and refreshed.
COMPILED = ("zero1_microbatches", "hsdp_tensor", "tensor8_zero3", "context_usp", "pipeline_tensor_zero1")
TOLERANCE = 0.02


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
def test_ledgers_are_the_reviewed_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.goldens.ledgers", str(tmp_path), *COMPILED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in COMPILED:
        assert (tmp_path / f"{name}.txt").read_text() == (FOLDER / f"{name}.txt").read_text(), name


def test_every_layout_has_a_ledger_and_every_surprise_a_reason() -> None:
    assert {path.stem for path in layouts()} == {path.stem for path in FOLDER.glob("*.txt")}
    for path in FOLDER.glob("*.txt"):
        text = path.read_text()
        ratio = float(re.search(r"\(([\d.]+)\)", text.splitlines()[0])[1])  # type: ignore[index]
        assert abs(ratio - 1) < TOLERANCE, f"{path.name}: {ratio}"
        assert "reason: NONE" not in text, path.name
