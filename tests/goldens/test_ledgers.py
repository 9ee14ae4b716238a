"""What each layout sends, compiled for H100s, is what was last reviewed: as planned to 2 %, or with a reason.

`python scripts/refresh_goldens.py` writes the ledgers anew (with the cuda13 extra; no GPU is needed).
"""

import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.goldens.ledgers import FOLDER, ROOT, layouts, reason

# Compiled in every run of the tests: together they have every kind of exchange. The rest are read, and refreshed.
COMPILED = ("zero1_microbatches", "hsdp_tensor", "tensor8_zero3", "context_usp", "pipeline_tensor_zero1")
TOLERANCE = 0.02
REVIEWED_WITH = "0.10."  # the line of JAX whose compiler made the goldens; another one may choose other pieces


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
def test_ledgers_are_the_reviewed_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.goldens.ledgers", str(tmp_path), *COMPILED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for name in COMPILED:
        text = (tmp_path / f"{name}.txt").read_text()
        if version("jax").startswith(REVIEWED_WITH):
            assert text == (FOLDER / f"{name}.txt").read_text(), name
        assert as_planned(text), name


def test_every_layout_has_a_ledger_and_every_surprise_a_reason() -> None:
    assert {path.stem for path in layouts()} == {path.stem for path in FOLDER.glob("*.txt")}
    for path in FOLDER.glob("*.txt"):
        text = path.read_text()
        assert as_planned(text), text.splitlines()[0]
        assert "reason: NONE" not in text, path.name


def as_planned(text: str) -> bool:
    """Whether what was found is what was planned, to the tolerance."""
    ratio = re.search(r"\(([\d.]+)\)$", text.splitlines()[0])
    assert ratio is not None
    return abs(float(ratio[1]) - 1) < TOLERANCE


def test_a_ledger_beyond_the_tolerance_is_seen() -> None:
    assert as_planned("x: planned 100 bytes, found 101 (1.0100)")
    assert not as_planned("x: planned 100 bytes, found 103 (1.0300)")
    assert reason("somebody sends something") == "NONE"
