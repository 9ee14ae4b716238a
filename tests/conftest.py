"""The session's devices: 8 virtual CPU devices, set before jax is imported; jaxtyping's checks switched on."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from jaxtyping import install_import_hook

install_import_hook(["meshtrain.parallel", "meshtrain.model"], "beartype.beartype")
