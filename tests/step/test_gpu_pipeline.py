"""A pipeline's step, compiled for H100s without a GPU: the tables' gradients are added up where they lie.

Run as a program it prints the copies of arrays as large as a table's gradient, with how often they run, as JSON.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VOCAB, EMBED = 4096, 128  # far larger than any other array of the model


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
def test_no_tick_copies_the_gradient_of_a_table() -> None:
    command = [sys.executable, "-m", "tests.step.test_gpu_pipeline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    copies = json.loads(done.stdout.splitlines()[-1])
    assert [copy for copy in copies if copy[0] > 1] == []


def find_copies() -> list[list[Any]]:
    """[times a step, shape, source] of each such copy."""
    from meshtrain.audit import compile_step
    from meshtrain.audit.copies import large_copies
    from meshtrain.audit.hlo import parse_module
    from meshtrain.layout import Layout
    from meshtrain.model import ModelConfig
    from meshtrain.step import Precision, StepConfig

    layout = Layout.parse(
        dict(
            mesh=dict(d=2, s=2, t=2), rules=dict(batch="d", layers="s", heads="t", kv_heads="t", mlp="t", vocab="t"),
            pipeline=dict(schedule="1f1b", microbatches=4),
        )
    )  # fmt: skip
    model = ModelConfig(
        num_layers=2, embed=EMBED, num_heads=2, num_kv_heads=2, head_dim=64, mlp=EMBED, vocab=VOCAB, max_length=64
    )
    compiled = compile_step(StepConfig(model, precision=Precision("bfloat16")), layout, 8, global_batch=8, length=64)
    text = compiled.as_text()
    assert text is not None
    found = large_copies(parse_module(text), least=VOCAB // 2 * EMBED * 4, most=100)
    return [[copy.times, copy.shape, copy.source] for copy in found]


if __name__ == "__main__":
    from meshtrain.run.compiler import compile_without_gpus

    compile_without_gpus()
    print(json.dumps(find_copies()))
