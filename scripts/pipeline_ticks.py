"""Wall time of a pipeline's step against the idle share that its table promises.

    python scripts/pipeline_ticks.py [--stages 4] [--milliseconds 40]

Virtual CPU devices; each piece sleeps for a fixed time in each pass, so that the time of a tick is known and hardly
depends on the machine's load. The backward pass runs the piece again, then makes the gradient of its input, then that
of its weight: three sleeps. Printed for each schedule and number of microbatches: the measured time, the idle share
that follows from it (work is what one stage would need without any gap), and the idle share of the table.
"""

import argparse
import os
import sys
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import Layout, place
from meshtrain.parallel.pipeline import Costs, lock_step, lock_step_idle, make_plan, schedule
from meshtrain.parallel.pipeline.executor import gradients
from meshtrain.parallel.pipeline.worker import Batch, Stages
from meshtrain.run.distributed import make_room

CASES = [
    ("gpipe", 1, (2, 4, 8, 16)), ("1f1b", 1, (2, 4, 8, 16)), ("interleaved", 2, (4, 8, 16)), ("zb_h1", 1, (4, 8, 16)),
]  # fmt: skip


def sleeping(seconds: float) -> Stages:
    """A model that does nothing but take its time: in F once, in the gradient of the input once, in that of w once."""

    def rest(x: jax.Array, *after: jax.Array) -> jax.Array:
        """x, some time after `after` is there."""

        def sleep(x: np.ndarray, *after: np.ndarray) -> np.ndarray:
            time.sleep(seconds)
            return np.asarray(x)

        return jax.pure_callback(sleep, jax.ShapeDtypeStruct(x.shape, x.dtype), x, *after)

    @jax.custom_vjp
    def piece(w: jax.Array, x: jax.Array) -> jax.Array:
        return rest(x) * w

    def forward(w: jax.Array, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        rested = rest(x)
        return rested * w, (w, rested)

    def backward(kept: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, rested = kept
        dx = rest(dy * w, rested)
        return rest((dy * rested).sum(), dx), dx

    piece.defvjp(forward, backward)

    def layers(weights: Batch, x: jax.Array, microbatch: Batch, ids: jax.Array) -> jax.Array:
        return piece(weights["w"][0], x)

    def embed(table: Batch, microbatch: Batch) -> jax.Array:
        return table["table"][microbatch["tokens"]]

    def head(table: Batch, x: jax.Array, microbatch: Batch) -> tuple[jax.Array, jax.Array]:
        return x.sum(), x.sum()

    return Stages(embed, layers, head)


def measure(name: str, p: int, m: int, v: int, seconds: float) -> tuple[float, float, float]:
    """(seconds of a step, the best of three; idle share from it; idle share of the table)."""
    here = place(Layout.parse(dict(mesh=dict(stage=p), rules=dict(layers="stage"), pipeline={})), p)
    table = lock_step(schedule(name, p, m, v))
    plan = make_plan(table)
    batch = {"tokens": jnp.zeros((m, 1, 2), jnp.int32)}
    ids = np.arange(p * v).reshape(v, p, 1).transpose(1, 0, 2)
    stages = sleeping(seconds / v)  # a piece is a part of a stage
    step = jax.jit(lambda w, table: gradients(stages, w, table, batch, plan, here, ids))
    arguments = {"w": jnp.ones((p * v,))}, {"table": jnp.ones((3, 1))}
    jax.block_until_ready(step(*arguments))
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        jax.block_until_ready(step(*arguments))
        times.append(time.perf_counter() - begin)
    took = min(times)
    costs = Costs(forward=1, backward=2, weight=1)  # backward runs the piece again
    return took, 1 - 4 * m * seconds / took, lock_step_idle(table, costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--milliseconds", type=float, default=40)
    arguments = parser.parse_args()
    make_room(8)
    p, seconds = arguments.stages, arguments.milliseconds / 1e3
    print("| schedule | stages | repeats | microbatches | step, s | idle, measured | idle, table |")
    print("|---|---|---|---|---|---|---|")
    for name, v, counts in CASES:
        for m in counts:
            took, measured, promised = measure(name, p, m, v, seconds)
            print(f"| {name} | {p} | {v} | {m} | {took:.3f} | {measured:.1%} | {promised:.1%} |", flush=True)


if __name__ == "__main__":
    main()
