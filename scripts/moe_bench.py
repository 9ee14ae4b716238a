"""Milliseconds of a training step on one CPU device: experts, dropless and with a capacity, beside a dense model.

    python scripts/moe_bench.py [steps]

The dense model (`tiny`) does as many FLOPs a token as `tiny_moe` does, but for the router. Fastest of all steps.
"""

import os
import sys
import time
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

ROWS, LENGTH = 8, 256


def milliseconds(model: ModelConfig, experts: dict | None, steps: int) -> float:
    """Of the fastest of `steps` steps, after one."""
    here = place(Layout.parse(dict(mesh=dict(), experts=experts)), 1)
    config = StepConfig(model, OptimizerConfig())
    state = initial_state(model, config.optimizer, 0, here)
    random = np.random.default_rng(0)
    tokens = random.integers(0, model.vocab, (ROWS, LENGTH + 1), dtype=np.int32)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (ROWS, LENGTH))
    batch = dict(
        tokens=tokens[:, :-1], labels=tokens[:, 1:], positions=positions, segments=np.ones_like(positions),
        index_B=np.arange(ROWS, dtype=np.int32),
    )  # fmt: skip
    batch = jax.tree.map(jnp.asarray, batch)
    step = make_train_step(config, here)
    times = []
    for _ in range(steps + 1):
        begun = time.perf_counter()
        state, metrics = step(state, batch, np.float32(1e-3))
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - begun)
    return 1000 * min(times[1:])


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    dense, sparse = (build(ModelConfig, model.get_config().to_dict(), "model") for model in (tiny, tiny_moe))
    cases = {
        "dense": (dense, None),
        "dropless": (sparse, None),
        "capacity 1.25": (sparse, dict(dispatch="capacity", capacity_factor=1.25)),
    }
    for name, (model, experts) in cases.items():
        flops = model_flops_per_token(model, LENGTH)
        print(f"{name:14} {milliseconds(model, experts, steps):8.1f} ms   {flops / 1e6:.2f} MFLOP a token", flush=True)


if __name__ == "__main__":
    main()
