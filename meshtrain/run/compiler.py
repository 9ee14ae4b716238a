"""The environment in which XLA compiles for GPUs that are not there. To be set before anything touches a device."""

import os

from meshtrain.errors import MeshtrainError

WITHOUT_GPUS = {
    "JAX_PLATFORMS": "cpu",  # no GPU is looked for
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # nor a driver
}
XLA_FLAGS = ("--xla_gpu_autotune_level=0",)  # tuning would run kernels
NUM_DEVICES_FLAG = "--xla_force_host_platform_device_count"


def compile_without_gpus(cpu_devices: int = 1) -> None:
    """Makes this process one that compiles for GPUs and runs on the CPU, with so many virtual devices of it."""
    os.environ.update(WITHOUT_GPUS)
    given = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(NUM_DEVICES_FLAG)]
    os.environ["XLA_FLAGS"] = " ".join([*given, *(flag for flag in XLA_FLAGS if flag not in given)])
    import jax

    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cpu_devices)
    except RuntimeError:
        raise MeshtrainError("the compiler is chosen before a device is used: start this in its own process") from None
