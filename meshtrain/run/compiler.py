"""The environment in which XLA compiles for GPUs that are not there. To be set before jax is imported."""

import os
import sys

from meshtrain.errors import MeshtrainError

WITHOUT_GPUS = {
    "JAX_PLATFORMS": "cpu",  # no GPU is looked for
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # nor a driver
}
XLA_FLAGS = ("--xla_gpu_autotune_level=0",)  # tuning would run kernels


def compile_without_gpus(cpu_devices: int | None = None) -> None:
    """Makes this process one that compiles for GPUs and runs on the CPU, with so many virtual devices of it."""
    if "jax" in sys.modules:
        raise MeshtrainError("the compiler is chosen before jax is imported: start this in a process of its own")
    os.environ.update(WITHOUT_GPUS)
    given = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*given, *(flag for flag in XLA_FLAGS if flag not in given)])
    if cpu_devices is not None:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(cpu_devices)
