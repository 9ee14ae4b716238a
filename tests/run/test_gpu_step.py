"""The training step of the run files, compiled for H100s without a GPU: it fits, and cuDNN computes attention.

Run as a program (`python -m tests.run.test_gpu_step RUN NUM_DEVICES`) it prints what the compiler says as JSON: the
compiler for GPUs is chosen by the environment, before jax is imported.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshtrain.run.compiler import compile_without_gpus

ROOT = Path(__file__).parents[2]
H100_MEMORY = 80e9


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
@pytest.mark.parametrize(
    ("run", "num_devices", "state"),
    [("llama3_8b", 8, 12 * 8_030_261_248 / 8), ("gpt2_1b5", 8, 12 * 1_557_611_200 / 8)],
)
def test_the_step_fits_and_uses_flash_attention(run: str, num_devices: int, state: float) -> None:
    command = [sys.executable, "-m", "tests.run.test_gpu_step", run, str(num_devices)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["arguments"] == pytest.approx(state, rel=0.01)  # float32 masters and two moments, cut over all devices
    assert found["arguments"] + found["temporary"] < 0.9 * H100_MEMORY
    assert found["flash"] >= 2  # at least once forward and once backward


def compile_run(run: str, num_devices: int) -> dict[str, int]:
    """Bytes per device of the compiled step, and how many of its calls are cuDNN's flash attention."""
    compile_without_gpus()
    from meshtrain.audit import compile_step
    from meshtrain.layout import Layout
    from meshtrain.run.arguments import parse
    from meshtrain.run.config import load
    from meshtrain.run.startup import step_config

    request = load(parse(["--config", str(ROOT / f"configs/runs/{run}.py")]))
    layout, config = Layout.parse(request.layout, request.layout_name), request.config
    step = compile_step(
        step_config(config), layout, num_devices, global_batch=config.global_batch, length=config.data.length,
        packed=config.data.packed,
    )  # fmt: skip
    memory, text = step.memory_analysis(), step.as_text()
    assert memory is not None
    assert text is not None
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "flash": text.count('custom_call_target="__cudnn$fmha'),
    }


if __name__ == "__main__":
    print(json.dumps(compile_run(sys.argv[1], int(sys.argv[2]))))
