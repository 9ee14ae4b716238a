"""Experts compiled for 16 H100s without a GPU: tokens travel to their experts and back, and nothing else of size does.

Run as a program (`python -m tests.parallel.experts.test_gpu LAYOUT DISPATCH`) it prints the collectives of a training
step as JSON. A device has T tokens of D numbers (bf16), each goes to K experts. One way and layer, bytes on a device:

    dropless   K T D x 2, whatever the load: each pair of a token and an expert is sent once
    capacity   factor x K T D x 2: the slots of all experts, full or not
"""

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from meshtrain.run.compiler import compile_without_gpus

ROOT = Path(__file__).parents[3]
DEVICES, LAYERS, D, T, E, K, FACTOR = 16, 2, 512, 1024, 32, 4, 1.25
LAYOUTS: dict[str, dict[str, Any]] = {
    "an axis of their own": dict(mesh=dict(data=2, expert=8), rules=dict(batch=("data", "expert"), expert="expert")),
    "folded on data": dict(mesh=dict(data=16), rules=dict(batch="data", expert="data")),
    "tensor and sequence": dict(
        mesh=dict(data=8, tensor=2),
        rules=dict(batch="data", expert="data", heads="tensor", kv_heads="tensor"),
        activations=dict(stream="tensor"),
    ),
    "two axes": dict(mesh=dict(node=2, gpu=8), rules=dict(batch=("node", "gpu"), expert=("node", "gpu"))),
}


def declared(layout: str, dispatch: str) -> dict[str, Any]:
    factor = dict(capacity_factor=FACTOR) if dispatch == "capacity" else {}
    return dict(LAYOUTS[layout], experts=dict(dispatch=dispatch, **factor))


def compile_collectives(layout: str, dispatch: str) -> list["Collective"]:
    """(kind, dtype, shape of the larger side, bytes of it, times, axes) of each collective of a training step."""
    compile_without_gpus()
    from meshtrain.audit import compile_step
    from meshtrain.audit.collectives import read_collectives
    from meshtrain.audit.hlo import parse_module
    from meshtrain.layout import Layout
    from meshtrain.model import ModelConfig, MoEConfig
    from meshtrain.step import OptimizerConfig, Precision, StepConfig

    model = ModelConfig(LAYERS, D, 8, 8, 64, 1024, 4096, T, moe=MoEConfig(E, K, 256, balance_loss=0.01))
    parsed = Layout.parse(declared(layout, dispatch))
    config = StepConfig(model, OptimizerConfig(), Precision("bfloat16"))
    quick: dict[str, bool | str] = {"xla_backend_optimization_level": "0"}
    text = compile_step(config, parsed, DEVICES, global_batch=DEVICES, length=T, options=quick).as_text()
    assert text is not None
    found = read_collectives(parse_module(text), parsed.mesh.resolve(DEVICES))
    return [(one.kind, one.dtype, list(one.shape), one.bytes, one.times, list(one.partners.axes)) for one in found]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
@pytest.mark.parametrize(
    ("layout", "dispatch"),
    [
        ("an axis of their own", "dropless"),
        ("folded on data", "capacity"),
        ("tensor and sequence", "dropless"),
        ("two axes", "dropless"),
    ],
)
def test_tokens_travel_and_nothing_else(layout: str, dispatch: str) -> None:
    command = [sys.executable, "-m", "tests.parallel.experts.test_gpu", layout, dispatch]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    check(json.loads(done.stdout.splitlines()[-1]), 2 if layout == "two axes" else 1, dispatch)


Collective = tuple[str, str, list[int], int, int, list[str]]


def check(found: list[Collective], hops: int, dispatch: str) -> None:
    """The exchanges to the byte, forward and backward. No gather but sequence parallelism's over `tensor`, and counts,
    of at most a thousandth of a device's tokens (each device tells the others how many rows it has for each expert)."""
    for kind, dtype, shape, size, _, axes in found:
        counts = dtype == "s32" and size < T * D * 2 / 1000
        assert kind != "all_gather" or axes == ["tensor"] or counts, (kind, dtype, shape, axes)
    sent = Counter[int]()
    for kind, dtype, shape, size, times, _ in found:
        if kind == "all_to_all" and dtype == "bf16":
            assert shape[-1] == D, shape
            sent[size] += times
    one_way = K * T * D * 2
    if dispatch == "capacity":
        assert sent == {FACTOR * one_way: LAYERS * 2 * 2 * hops}  # out and back, forward and backward
        return
    # Between a device's own pairs and the next buffer no more than the pairs can travel. A second hop is between two
    # buffers for the worst case (8 times the pairs here): what is sent of them is what has come.
    assert sent == {one_way: LAYERS * 2 * 2} | ({8 * one_way: LAYERS * 2 * 2} if hops == 2 else {})


def test_the_check_bites() -> None:
    """A gather of the tokens, a way that is not taken, and pairs that are sent twice."""
    good: list[Collective] = [
        ("all_to_all", "bf16", [K * T, D], K * T * D * 2, 4 * LAYERS, ["expert"]),
        ("all_gather", "s32", [8, E], 8 * E * 4, LAYERS, ["expert"]),
    ]
    check(good, 1, "dropless")
    for bad in ([*good, ("all_gather", "bf16", [8 * T, D], 8 * T * D * 2, 1, ["expert"])], good[1:], [*good, good[0]]):
        with pytest.raises(AssertionError):
            check(bad, 1, "dropless")


if __name__ == "__main__":
    print(json.dumps(compile_collectives(*sys.argv[1:3])))
