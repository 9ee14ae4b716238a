"""The training step of the run files, compiled for H100s without a GPU: it fits, and cuDNN computes attention.

Run as a program (`python -m tests.run.test_gpu_step RUN NUM_DEVICES`) it prints what the compiler says as JSON: the
compiler for GPUs is chosen by the environment, before jax is imported.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    from jax.experimental import topologies

    from meshtrain.layout import Layout, Placement, build_mesh
    from meshtrain.run import startup
    from meshtrain.run.arguments import parse
    from meshtrain.run.config import load
    from meshtrain.run.progress import Progress
    from meshtrain.step import state_specs
    from tests.parallel.attention.h100 import H100

    topology = topologies.get_topology_desc(platform="cuda", target_config=H100, topology=f"1x1x{num_devices}")
    request = load(parse(["--config", str(ROOT / f"configs/runs/{run}.py")]))
    layout = Layout.parse(request.layout, request.layout_name)
    place = Placement(layout, build_mesh(layout.mesh.resolve(num_devices), topology.devices))
    config = request.config
    specs = state_specs(config.model, config.optimizer)
    step = startup.compile_step(config, specs, place, Progress(config.steps, config.log_every))
    memory = step.memory_analysis()  # type: ignore[attr-defined]
    return {
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "flash": step.as_text().count('custom_call_target="__cudnn$fmha'),  # type: ignore[attr-defined]
    }


if __name__ == "__main__":
    os.environ.update(
        JAX_PLATFORMS="cpu", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1", XLA_FLAGS="--xla_gpu_autotune_level=0",
    )  # fmt: skip
    print(json.dumps(compile_run(sys.argv[1], int(sys.argv[2]))))
