"""Did the compiler do as told? The training step compiled for any number of GPUs, read and held against the plan."""

from meshtrain.audit.compile import compile_step, place_on_gpus

__all__ = ["compile_step", "place_on_gpus"]
