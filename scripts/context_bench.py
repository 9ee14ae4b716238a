"""Tables about context parallelism on 8 virtual CPU devices: balance, rounding, memory by length, a step of a long row.

    python scripts/context_bench.py [balance] [rounding] [memory] [step]        (default: the first three)
        --layout context_ring_zigzag      the layout file, with context=8
        --lengths 8192 16384 32768 65536  for `memory`; the last one is the length of `step`
        --document 4096                   tokens of a document of `step`; as long as the row: one document

`memory` compiles the whole training step of the tiny model for one row of each length and prints the compiler's
temporary bytes per device; `step` runs one such step. One row of 65,536 tokens as one document takes 16 times as long
as in documents of 4,096.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 8


def placement(name: str) -> Any:
    """The layout file over 8 devices, all of them along the length."""
    import jax

    from meshtrain.layout import Layout, Placement, build_mesh
    from meshtrain.run import config_file

    values = config_file.read(str(ROOT / "configs/layouts" / f"{name}.py"), "layout").values
    sizes = {"ring": 4, "swap": 2} if "swap" in values["mesh"] else {"context": CONTEXT}
    values["mesh"] = {axis: sizes.get(axis, 1) for axis in values["mesh"]}
    layout = Layout.parse(values, name)
    return Placement(layout, build_mesh(layout.mesh.resolve(CONTEXT), jax.devices()[:CONTEXT]))


def balance() -> None:
    """Blocks of attention on each of 4 devices, 4 blocks of each device's queries and keys."""
    from meshtrain.parallel.attention.schedule import ring_schedule

    print("blocks of queries and keys on each of 4 devices (16 x 16 blocks of 64 tokens)")
    for window in (None, 512, 128):
        for name, chunks in (("contiguous", 1), ("zigzag", 2)):
            schedule = ring_schedule(4, chunks, 1024, window)
            counts = ", ".join(map(str, schedule.balance(4)))
            mask = "causal" if window is None else f"window {window}"
            print(f"  {mask:<12}{name:<12}{counts:<18}steps {[step.shift for step in schedule.steps]}")


def rounding() -> None:
    """bf16 inputs against float64, relative root mean square, for rings of 1 to 8 devices."""
    sys.path.insert(0, str(ROOT))
    from tests.parallel.attention.test_context import bf16_error

    print("\nbf16, 128 tokens in a zigzag ring: error relative to float64 (root mean square)")
    print("  devices   out       dq        dk        dv")
    for size in (1, 2, 4, 8):
        print(f"  {size:<10}" + "".join(f"{error:<10.2e}" for error in bf16_error(size).values()))


def make_step(layout: str, length: int) -> Any:
    """(compiled step of the tiny model for one row, placement, step config)."""
    from meshtrain.io.rows import batch_fields
    from meshtrain.model import ModelConfig
    from meshtrain.run import config_file
    from meshtrain.step import StepConfig
    from meshtrain.step.lower import lower_step

    sizes = config_file.read(str(ROOT / "configs/models/tiny.py"), "model").values
    model = ModelConfig(**{**sizes, "max_length": length})
    place, config = placement(layout), StepConfig(model)
    lowered = lower_step(config, place, 1, length, batch_fields(packed=True))
    return lowered.compile(), place, config


def memory(layout: str, lengths: list[int]) -> None:
    """Temporary bytes of the compiled step by length."""
    print(f"\n{layout}, tiny model, one row on {CONTEXT} devices: compiled temporary bytes per device")
    print("  length    MB        bytes per token of the row   compile")
    for length in lengths:
        began = time.perf_counter()
        compiled = make_step(layout, length)[0]
        size = compiled.memory_analysis().temp_size_in_bytes
        seconds = time.perf_counter() - began
        print(f"  {length:<10,}{size / 1e6:<10.1f}{size / length:<29.0f}{seconds:.0f} s", flush=True)


def long_step(layout: str, length: int, document: int) -> None:
    """One training step on a row of `length` tokens in documents of `document`."""
    import jax
    import numpy as np

    from meshtrain.io.loader import Batches
    from meshtrain.step import initial_state

    class OneRow:
        num_rows = None

        def __init__(self) -> None:
            self.length = length

        def rows(self, index: Any, sample: Any = None) -> Any:
            tokens = np.random.default_rng(0).integers(0, 4096, (len(index), length)).astype(np.int32)
            place_in_row = np.broadcast_to(np.arange(length, dtype=np.int32), tokens.shape)
            labels = np.where((place_in_row + 1) % document == 0, -1, np.roll(tokens, -1, 1)).astype(np.int32)
            return dict(
                tokens=tokens, labels=labels, positions=place_in_row % document, segments=1 + place_in_row // document
            )

    compiled, place, config = make_step(layout, length)
    state = jax.block_until_ready(initial_state(config.model, config.optimizer, 0, place))
    with Batches(OneRow(), place, global_batch=1, stop_step=1) as batches:
        batch = next(batches)
    began = time.perf_counter()
    _, metrics = compiled(state, batch, np.float32(1e-3))
    loss = float(metrics["loss"])
    what = "one document" if document >= length else f"documents of {document:,}"
    seconds = time.perf_counter() - began
    print(f"\na step of {length:,} tokens ({what}) under {layout}: loss {loss:.4f}, {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=["balance", "rounding", "memory"])
    parser.add_argument("--layout", default="context_ring_zigzag")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 16384, 32768, 65536])
    parser.add_argument("--document", type=int, default=4096)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={CONTEXT}"
    sys.path.insert(0, str(ROOT))
    tables = options.tables
    if unknown := set(tables) - {"balance", "rounding", "memory", "step"}:
        parser.error(f"there is no table {', '.join(sorted(unknown))}")
    if "balance" in tables:
        balance()
    if "rounding" in tables:
        rounding()
    if "memory" in tables:
        memory(options.layout, options.lengths)
    if "step" in tables:
        long_step(options.layout, options.lengths[-1], options.document)


if __name__ == "__main__":
    main()
