"""What a step says of its routers, as the flat numbers of a record."""

import json
from pathlib import Path

import numpy as np

from meshtrain.run.metrics import Metrics, read
from meshtrain.run.routers import router_record

ROUTERS = {
    "load": np.array([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]], np.float32),
    "max_over_mean": np.array([2.0, 1.0], np.float32),
    "drop_share": np.array([0.25, 0.0], np.float32),
    "entropy": np.array([1.0, 0.5], np.float32),
}


def test_summaries_layers_and_loads() -> None:
    record = router_record(ROUTERS, with_load=True)
    assert record == {
        "moe/max_over_mean": 2.0, "moe/drop_share": 0.125, "moe/entropy": 0.75,
        "moe/max_over_mean/0": 2.0, "moe/max_over_mean/1": 1.0, "moe/drop_share/0": 0.25, "moe/drop_share/1": 0.0,
        "moe/entropy/0": 1.0, "moe/entropy/1": 0.5,
        "moe/load/0": [0.5, 0.25, 0.25, 0.0], "moe/load/1": [0.25, 0.25, 0.25, 0.25],
    }  # fmt: skip
    assert not any("load" in name for name in router_record(ROUTERS, with_load=False))


def test_lists_are_in_the_records_and_not_on_the_board(tmp_path: Path) -> None:
    said: list[str] = []
    metrics = Metrics(tmp_path, 0, said.append, tensorboard=True)
    metrics.write({"step": 1, "loss": 2.0, **router_record(ROUTERS, with_load=True)})
    metrics.close()
    assert not said
    (record,) = read(tmp_path / "metrics.jsonl")
    assert record["moe/load/0"] == [0.5, 0.25, 0.25, 0.0]
    assert json.dumps(record)
