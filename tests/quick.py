"""Compiling takes most of the time of programs that run once: here without optimisation, in half the time."""

from typing import Any

import jax

from meshtrain.model import initialize

QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}  # the numbers are the same to rounding

first_weights = jax.jit(initialize, static_argnums=0, compiler_options=QUICK)  # of a model, from a key
