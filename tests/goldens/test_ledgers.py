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

from meshtrain.audit.ledger import SCALARS
from meshtrain.cost.traffic import predict_traffic
from meshtrain.layout import Layout, place_abstract
from meshtrain.run.startup import step_config
from tests.goldens.ledgers import AT_SIZE, FOLDER, MUON, ROOT, at_size, names, reason

# Compiled in every run of the tests: together they have every kind of exchange. The rest are read, and refreshed.
COMPILED = (
    "zero1_microbatches", "hsdp_tensor", "tensor8_zero3", "context_usp", "pipeline_tensor_zero1", "expert_tensor",
    "llama3_405b_8k", "context_ring_zigzag_remat_full", "muon/tensor_zero3",
)  # fmt: skip
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
    assert set(names()) == {path.stem for path in FOLDER.glob("*.txt")}
    assert set(MUON) == {path.stem for path in FOLDER.glob("muon/*.txt")}
    assert set(AT_SIZE) == {path.stem for path in FOLDER.glob("at_size/*.txt")}
    for path in FOLDER.rglob("*.txt"):
        text = path.read_text()
        assert as_planned(text), text.splitlines()[0]
        assert "reason: NONE" not in text, path.name


@pytest.mark.parametrize("name", AT_SIZE)
def test_the_plan_of_a_published_run_is_the_one_that_was_audited_at_its_size(name: str) -> None:
    config, values, num_devices = at_size(name)
    place = place_abstract(Layout.parse(values, name), num_devices)
    planned = predict_traffic(
        step_config(config), place, global_batch=config.global_batch, length=config.data.length,
        packed=config.data.packed,
    )  # fmt: skip
    text = (FOLDER / "at_size" / f"{name}.txt").read_text()
    audited = planned_bytes(text)
    assert sum(one.wire_bytes for one in planned) == pytest.approx(audited, abs=len(text.splitlines()))


def planned_bytes(text: str) -> int:
    """What the lines of a ledger say was planned, without the line of single numbers."""
    lines = re.findall(r" x \d+ +([\d,]+) +[\d,]+  (.*)", text)
    return sum(int(planned.replace(",", "")) for planned, why in lines if why != SCALARS)


def as_planned(text: str) -> bool:
    """Whether what was found is what was planned, to the tolerance."""
    ratio = re.search(r"\(([\d.]+)\)$", text.splitlines()[0])
    assert ratio is not None
    return abs(float(ratio[1]) - 1) < TOLERANCE


def test_a_ledger_beyond_the_tolerance_is_seen() -> None:
    assert as_planned("x: planned 100 bytes, found 101 (1.0100)")
    assert not as_planned("x: planned 100 bytes, found 103 (1.0300)")
    assert reason("somebody sends something") == "NONE"
