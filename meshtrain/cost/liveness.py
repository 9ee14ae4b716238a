"""How many bytes a traced function holds at once, beside its inputs: a walk over its jaxpr in order.

Follows what a fusing compiler does: element-wise work, broadcasts and slices live in registers and only what a matrix
product, a loop or a result needs is a buffer; a buffer dies after its last use, and element-wise work may overwrite it.
Products of rows with the matrix of their group are dense for GPUs: of the rows once for each group, beside each
other, with zeros for those of other groups.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Ops whose operands and results are buffers. All others are fused into whoever reads them.
HEAVY = {
    "dot_general", "conv_general_dilated", "gather", "scatter", "scatter-add", "sort", "top_k", "cumsum", "scan",
    "while", "cond", "ragged_dot", "ragged_dot_general", "custom_call", "ffi_call", "all_to_all", "ragged_all_to_all",
    "all_gather", "reduce_scatter", "psum",
}  # fmt: skip
# The same bytes under another shape or name.
VIEWS = {
    "reshape",
    "squeeze",
    "expand_dims",
    "name",
    "sharding_constraint",
    "copy",
    "optimization_barrier",
    "reduce_precision",
}
REDUCTIONS = ("reduce_", "argmax", "argmin")
EXPANDED = 0  # the number of the one buffer for all rows that stand once for each group


@dataclass
class _Walk:
    """The flat program: each value's buffers, and who reads and makes them when."""

    sizes: dict[int, int] = field(default_factory=dict)  # buffer -> bytes
    made: dict[int, int] = field(default_factory=dict)  # buffer -> number of the op that makes it
    last: dict[int, int] = field(default_factory=dict)  # buffer -> number of the last op that reads it
    inner: dict[int, int] = field(default_factory=dict)  # number of an op -> bytes that it holds inside
    expanded: dict[int, int] = field(default_factory=dict)  # rows once for each group, for sums over rows: bytes
    summed: int = 0  # number of the first op that sums rows
    number: int = 0


def peak_bytes(jaxpr: Any, results: bool = True) -> int:
    """The most bytes of buffers alive at once, inputs left out. `results`: whether the function's results count."""
    heavy = set(_needed_by_heavy(jaxpr)) | {id(v) for v in jaxpr.outvars if results}
    walk = _Walk()
    buffers: dict[int, frozenset[int]] = {id(v): frozenset() for v in (*jaxpr.invars, *jaxpr.constvars)}
    _run(jaxpr, buffers, heavy, walk)
    for v in jaxpr.outvars:
        for buffer in buffers.get(id(v), ()):
            if results:
                walk.last[buffer] = walk.number
    held = np.zeros(walk.number + 2)
    for buffer, size in walk.sizes.items():
        held[walk.made[buffer]] += size
        held[max(walk.last.get(buffer, 0), walk.made[buffer]) + 1] -= size
    alive = held.cumsum()
    for number, size in walk.inner.items():
        alive[number] += size
    return int(alive.max())


def _run(jaxpr: Any, buffers: dict[int, frozenset[int]], heavy: set[int], walk: _Walk) -> None:
    for eqn in jaxpr.eqns:
        inner = called(eqn)
        if inner is not None:
            for inside, outside in zip(inner.invars, eqn.invars[-len(inner.invars) :], strict=True):
                buffers[id(inside)] = buffers.get(id(outside), frozenset())
            buffers.update({id(v): frozenset() for v in inner.constvars})
            _run(inner, buffers, heavy, walk)
            for outside, inside in zip(eqn.outvars, inner.outvars, strict=True):
                buffers[id(outside)] = buffers.get(id(inside), frozenset())
            continue
        walk.number += 1
        read = frozenset().union(*(buffers.get(id(v), frozenset()) for v in eqn.invars))
        name = eqn.primitive.name
        if name == "ragged_dot_general":
            read = _expand(eqn, read, walk)
        for buffer in read:
            walk.last[buffer] = walk.number
        if name in ("scan", "while", "cond"):
            walk.inner[walk.number] = max((peak_bytes(body, results=name == "scan") for body in bodies(eqn)), default=0)
        for v in eqn.outvars:
            buffers[id(v)] = _made(v, eqn, read, heavy, walk)


def _expand(eqn: Any, read: frozenset[int], walk: _Walk) -> frozenset[int]:
    """The rows of a product by groups, once for each group; returns the buffers that are read here.

    Read off H100 programs: a product of rows has them while it runs. Sums over rows (gradients of weights) follow each
    other, the rows of all their operands are there from the first to the last, and what they are made of is not.
    """
    num_groups = _num_groups(eqn)
    if num_groups == 1:
        return read
    if not _sums_rows(eqn):
        walk.inner[walk.number] = num_groups * num_bytes(eqn.invars[0].aval)
        return read
    walk.summed = walk.summed or walk.number
    walk.expanded |= {id(operand): num_groups * num_bytes(operand.aval) for operand in eqn.invars[:2]}
    walk.sizes[EXPANDED], walk.made[EXPANDED] = sum(walk.expanded.values()), walk.summed + 1
    for buffer in read:
        walk.last[buffer] = max(walk.last.get(buffer, 0), walk.summed)
    return frozenset((EXPANDED,))


def _num_groups(eqn: Any) -> int:
    return int(eqn.invars[2].aval.shape[-1])


def _sums_rows(eqn: Any) -> bool:
    dims = eqn.params["ragged_dot_dimension_numbers"]
    return dims.lhs_ragged_dimensions[0] in dims.dot_dimension_numbers[0][0]


def _made(v: Any, eqn: Any, read: frozenset[int], heavy: set[int], walk: _Walk) -> frozenset[int]:
    """The buffers that a value stands in: its own, or those that it is computed from when it is read."""
    name = eqn.primitive.name
    solid = name in HEAVY or name.startswith(REDUCTIONS)
    if not solid and (id(v) not in heavy or (name in VIEWS and read)):
        return read
    size = num_bytes(v.aval)
    if not solid:  # element-wise: it may take the place of an operand that ends here
        for buffer in read:
            if walk.sizes[buffer] == size and buffer not in walk.last:
                return frozenset((buffer,))
    walk.sizes[id(v)], walk.made[id(v)] = size, walk.number
    return frozenset((id(v),))


def _needed_by_heavy(jaxpr: Any) -> Iterator[int]:
    """Values that a heavy op reads, those inside of calls included, under the names outside too."""
    for eqn in jaxpr.eqns:
        inner = called(eqn)
        if inner is None:
            if eqn.primitive.name == "ragged_dot_general" and _sums_rows(eqn) and _num_groups(eqn) > 1:
                continue  # what makes its operands makes them once for each group at once
            if eqn.primitive.name in HEAVY:
                yield from (id(v) for v in eqn.invars)
            continue
        inside = set(_needed_by_heavy(inner))
        yield from inside
        pairs = zip(inner.invars, eqn.invars[-len(inner.invars) :], strict=True)
        yield from (id(outside) for inner_v, outside in pairs if id(inner_v) in inside)


def called(eqn: Any) -> Any:
    """The jaxpr that an op runs once, as if it stood there (jit, remat, custom derivatives, a shard_map of arrays that
    are one device's parts already); None for all others."""
    if eqn.primitive.name in HEAVY:
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in eqn.params:
            found = eqn.params[key]
            return getattr(found, "jaxpr", found)
    return None


def bodies(eqn: Any) -> Iterable[Any]:
    """The jaxprs of a loop or a branch."""
    for key in ("jaxpr", "body_jaxpr", "branches"):
        if key in eqn.params:
            found = eqn.params[key]
            yield from (getattr(one, "jaxpr", one) for one in (found if isinstance(found, tuple) else (found,)))


def num_bytes(aval: Any) -> int:
    """Bytes of a value's array; 0 for what is none."""
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    if shape is None or dtype is None:
        return 0
    try:
        return math.prod(shape) * np.dtype(dtype).itemsize
    except TypeError:  # a key of random numbers
        return 0
