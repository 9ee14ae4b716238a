"""One of two processes that read batches under two meshes and print which rows they hold: started by a test.

python -m tests.run.processes.reader HOST:PORT INDEX
"""

import json
import math
import sys
from typing import Any

import numpy as np

from meshtrain.io.config import DataConfig
from meshtrain.io.loader import Batches
from meshtrain.io.sources import open_train
from meshtrain.layout import Layout, place
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.join import join

# The slowest axis comes first: processes differ in it.
MESHES = {"data": {"data": 2, "model": 4}, "model": {"model": 2, "data": 4}}
STEPS, BATCH = (5, 8), 8


def rows_held(mesh: dict[str, int]) -> dict[str, dict[str, Any]]:
    """For each step: sample id -> the tokens of its row, of the rows that this process's devices hold."""
    layout = Layout.parse({"mesh": mesh, "rules": {"batch": "data", "mlp": "model"}}, "test", "")
    placement = place(layout, math.prod(mesh.values()))
    source = open_train(DataConfig(kind="synthetic", length=16), vocab=64, seed=0)
    held: dict[str, dict[str, Any]] = {}
    with Batches(source, placement, global_batch=BATCH, start_step=STEPS[0], stop_step=STEPS[1]) as batches:
        for step, batch in enumerate(batches, STEPS[0]):
            ids = {_first(shard): np.asarray(shard.data) for shard in batch["index_B"].addressable_shards}
            rows = {_first(shard): np.asarray(shard.data) for shard in batch["tokens"].addressable_shards}
            held[str(step)] = {
                str(number): row.tolist()
                for first in sorted(ids)
                for number, row in zip(ids[first].tolist(), rows[first], strict=True)
            }
    return held


def _first(shard: Any) -> int:
    """The number in the batch of a shard's first row."""
    return int(shard.index[0].indices(BATCH)[0])


if __name__ == "__main__":
    join(ThisProcess(int(sys.argv[2]), 2, sys.argv[1], f"host{sys.argv[2]}", wait=60), {}, lambda text: None)
    print(json.dumps({name: rows_held(mesh) for name, mesh in MESHES.items()}))
