"""A program for test_pipeline: 40 steps of a pipeline with tensor parallelism; a hang ends it after 20 seconds."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["PJRT_NPROC"] = "2"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_collective_call_terminate_timeout_seconds=20"
)

from tests.quick import QUICK
from tests.step.test_pipeline import CASES, batch, config, initial_state, layout, make_train_step, np


def main() -> None:
    case = CASES["gemma"]
    here, step_config = layout(**case.layout), config(**case.model)
    state = initial_state(step_config.model, step_config.optimizer, 0, here)
    step = make_train_step(step_config, here)
    compiled = step.lower(state, batch(), np.float32(1e-2)).compile(compiler_options=QUICK)  # type: ignore[attr-defined]
    for _ in range(40):
        state, metrics = compiled(state, batch(), np.float32(1e-2))
        float(metrics["loss"])


if __name__ == "__main__":
    main()
