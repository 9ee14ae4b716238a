"""Large copies that the compiler adds: an array written again in another order of dims, or for a loop's sake.

They cost memory and its bandwidth, and no line of the model asks for them; their origin says which one caused them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from meshtrain.audit.hlo import Module
from meshtrain.audit.origin import Origin, Origins


@dataclass(frozen=True)
class Copy:
    """bytes of one of them; times: how often a step; source: the line of the package that it comes from."""

    bytes: int
    times: int
    dtype: str
    shape: tuple[int, ...]
    source: str
    op: str


def large_copies(module: Module, least: int, most: int = 10) -> list[Copy]:
    """The copies and transposes of at least `least` bytes, those that move most in a step first."""
    found = sorted(_walk(module, Origins(module), module.entry, 1, least), key=lambda one: -one.bytes * one.times)
    return found[:most]


def _walk(module: Module, origins: Origins, name: str, times: int, least: int) -> Iterator[Copy]:
    computation = module.computations[name]
    for one in computation.instructions:
        inner = times * (one.trip_count or 1)
        if one.opcode in ("while", "conditional", "call"):
            keys = ("body", "branch_computations", "true_computation", "false_computation", "to_apply")
            for called in dict.fromkeys(name for key in keys for name in one.called.get(key, ())):
                yield from _walk(module, origins, called, inner, least)
            continue
        moves = one.opcode in ("copy", "transpose") or (one.opcode == "fusion" and _only_moves(one.name))
        arrays = one.arrays[:1]
        if moves and arrays and arrays[0].bytes >= least:
            origin = origins.of(one, computation, Origin())
            yield Copy(arrays[0].bytes, times, arrays[0].dtype, arrays[0].shape, origin.source, origin.op)


def _only_moves(name: str) -> bool:
    return name.startswith(("copy_fusion", "loop_transpose_fusion", "input_transpose_fusion", "wrapped_transpose"))
