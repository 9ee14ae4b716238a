"""The routers' biases over a run: no evaluation moves them, and a resume goes on with them exactly, under any layout.

They follow from counts alone, so where the same tokens choose the same experts they are equal bit by bit. (With plain
SGD, whose checkpoints hold no moments.)
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.io import checkpoint_folder
from meshtrain.run.arguments import parse
from meshtrain.run.config import load
from tests.run.corpus import prepare_bytes
from tests.run.runs import LAYOUTS, MODEL, RUN, numbers, restored, run_here, write_run

RATE, STEPS = 0.01, 6
MOE = dict(num_experts=4, top_k=2, mlp=16, router="sigmoid", bias=True, bias_rate=RATE, balance_loss=0.01)
CHANGES: dict[str, Any] = dict(
    model=MODEL | {"vocab": 257, "moe": MOE}, optimizer=RUN["optimizer"] | {"name": "sgd"}, steps=STEPS,
    layout=str(LAYOUTS / "expert.py"), eval_batches=1,
)  # fmt: skip


def bias(folder: Path, run: list[str]) -> np.ndarray:
    """The biases in the newest checkpoint [layer, expert]."""
    saved = checkpoint_folder.newest(folder / "run" / "checkpoints", print)
    assert saved is not None
    assert saved.step == STEPS
    return np.asarray(restored(saved, load(parse(run)).config)["params/layers/moe/router/bias"])


@pytest.mark.slow
def test_evaluation_and_resumes_leave_biases_as_they_are(tmp_path: Path, here: list[str]) -> None:
    data = prepare_bytes(tmp_path / "text")
    unbroken = write_run(tmp_path / "unbroken", data=data, **CHANGES)
    assert run_here(*unbroken, *here) == 0
    wanted = bias(tmp_path / "unbroken", unbroken)
    steps = wanted / RATE  # each step moved each bias once up or down, or not at all where the load is the mean
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert np.abs(steps).max() > 1.5
    assert not np.allclose(wanted, wanted[:, :1], atol=RATE / 2)

    pieces = write_run(tmp_path / "pieces", data=data, eval_every=1, **CHANGES)
    assert run_here(*pieces, *here, "--config.steps=3") == 0
    assert run_here(*pieces, *here) == 0
    np.testing.assert_array_equal(bias(tmp_path / "pieces", pieces), wanted)
    assert numbers(tmp_path / "pieces") == numbers(tmp_path / "unbroken")

    other = write_run(tmp_path / "other", data=data, **CHANGES)
    assert run_here(*other, *here, "--config.steps=3") == 0
    stages = ["--layout.mesh.data=2", "--layout.mesh.expert=1", "--layout.mesh.stage=2", "--layout.rules.layers=stage"]
    assert run_here(*other, *here, *stages, "--layout.pipeline.microbatches=2", "--config.cpu_devices=4") == 0
    np.testing.assert_array_equal(bias(tmp_path / "other", other), wanted)
