"""Milliseconds of a training step on one CPU device: experts, dropless and with a capacity, beside a dense model.

    python scripts/moe_bench.py [rounds] [rows]

The dense model (`tiny`) does as many FLOPs a token as `tiny_moe` does, but for the router. In each round every case
takes one step, in turn, so that what else the machine does meets all alike; ratios are those of the medians.

`tiny_moe` stores four times as many weights in its layers, and what a step does with each weight once (copies,
clipping, AdamW) counts here in full. With 8 rows of 256 tokens an expert gets 512 tokens a step, and this weighs more
than in published runs, where it is thousands on every device.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from configs.models import tiny, tiny_moe
from meshtrain.layout import Layout, place
from meshtrain.model import ModelConfig, model_flops_per_token
from meshtrain.run.schema import build
from meshtrain.step import OptimizerConfig, StepConfig, initial_state, make_train_step

LENGTH = 256


def step_of(model: ModelConfig, experts: dict | None, rows: int) -> Callable[[], float]:
    """Takes a training step and returns its milliseconds."""
    here = place(Layout.parse(dict(mesh=dict(), experts=experts)), 1)
    config = StepConfig(model, OptimizerConfig())
    state = initial_state(model, config.optimizer, 0, here)
    random = np.random.default_rng(0)
    tokens = random.integers(0, model.vocab, (rows, LENGTH + 1), dtype=np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (rows, LENGTH))
    batch = dict(
        tokens=tokens[:, :-1], labels=tokens[:, 1:], positions=positions, segments=np.ones_like(positions),
        index_B=np.arange(rows, dtype=np.int32),
    )  # fmt: skip
    batch = jax.tree.map(jnp.asarray, batch)
    step = make_train_step(config, here)

    def once() -> float:
        nonlocal state
        begun = time.perf_counter()
        state, metrics = step(state, batch, np.float32(1e-3))
        jax.block_until_ready((state, metrics))
        return 1000 * (time.perf_counter() - begun)

    return once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int, nargs="?", default=15)
    parser.add_argument("rows", type=int, nargs="?", default=8)
    options = parser.parse_args()
    dense, sparse = (build(ModelConfig, model.get_config().to_dict(), "model") for model in (tiny, tiny_moe))
    cases = {
        "dense": (dense, None),
        "dropless": (sparse, None),
        "capacity 1.25": (sparse, dict(dispatch="capacity", capacity_factor=1.25)),
    }
    steps = {name: step_of(*case, options.rows) for name, case in cases.items()}
    for once in steps.values():
        once(), once()
    times = np.array([[once() for once in steps.values()] for _ in range(options.rounds)])
    medians = np.median(times, axis=0)
    for (name, (model, _)), took in zip(cases.items(), medians, strict=True):
        flops = model_flops_per_token(model, LENGTH) / 1e6
        print(f"{name:14} {took:8.1f} ms  {took / medians[0]:.2f} of dense   {flops:.2f} MFLOP a token", flush=True)


if __name__ == "__main__":
    main()
