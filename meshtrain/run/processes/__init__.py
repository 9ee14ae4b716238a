"""Which process of how many is this one, and do they all start the same run? Nothing here but `peers` needs JAX."""

from meshtrain.run.processes.environment import ThisProcess, recognise

__all__ = ["ThisProcess", "recognise"]
