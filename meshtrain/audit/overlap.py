"""What the compiler's schedule puts between the start of a collective and its end: that much can run beside it.

Matrix products, attention kernels and loops count as compute; a fusion of element-wise work does not hide a transfer.
"""

import math
import re
from dataclasses import dataclass

from meshtrain.audit.hlo import Computation, Instruction, Module

_COMPUTE_CALL = re.compile(r"gemm|matmul|fmha|cublas|cudnn|triton|conv")


@dataclass(frozen=True)
class Beside:
    """FLOPs of matrix products between start and end, and how many instructions compute there (loops as one)."""

    flops: float = 0.0
    computes: int = 0
    asynchronous: bool = False


def beside(start: Instruction, inside: Computation, module: Module) -> Beside:
    """What stands between `start` and its end in the schedule."""
    if re.search(r'"is_sync":true', start.attributes):
        return Beside()
    flops, computes, running = 0.0, 0, False
    for one in inside.instructions:
        if one.name == start.name:
            running = True
        elif running and one.opcode.endswith("-done") and start.name in one.operands:
            return Beside(flops, computes, True)
        elif running:
            found = product_flops(one, inside, module)
            flops += found
            computes += bool(found) or one.opcode == "while" or bool(_custom(one))
    return Beside(flops, computes, True)


def product_flops(one: Instruction, inside: Computation, module: Module, times: int = 1) -> float:
    """FLOPs of matrix products in an instruction, with all that it calls; a loop's, as often as it turns."""
    if one.opcode == "dot":
        return times * _dot(one, inside)
    if one.opcode == "custom-call" and "gemm" in one.attributes + one.name:
        return times * _gemm(one, inside)
    if one.opcode == "while":
        times *= one.trip_count or 1
    called = one.called
    names = [name for key in ("body", "calls") for name in called.get(key, ())]
    names += list(called.get("to_apply", ())) if one.opcode == "call" else []
    keys = ("branch_computations", "true_computation", "false_computation")
    branches = [name for key in keys for name in called.get(key, ())]
    total = sum(_all_flops(name, module, times) for name in names)
    return total + max((_all_flops(name, module, times) for name in branches), default=0.0)


def _all_flops(name: str, module: Module, times: int) -> float:
    computation = module.computations.get(name)
    if computation is None:
        return 0.0
    return sum(product_flops(one, computation, module, times) for one in computation.instructions)


def module_flops(module: Module) -> float:
    """FLOPs of all matrix products of a step on one device; of branches the dearest. Attention kernels that are calls
    into a library are not counted."""
    return _all_flops(module.entry, module, 1)


def _dot(one: Instruction, inside: Computation) -> float:
    return 2.0 * one.arrays[0].size * _contracted(one, inside, one.attribute(r"lhs_contracting_dims=\{([\d,]*)\}"))


def _gemm(one: Instruction, inside: Computation) -> float:
    dims = one.attribute(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
    return 2.0 * one.arrays[0].size * _contracted(one, inside, (dims or "").replace('"', ""))


def _contracted(one: Instruction, inside: Computation, dims: str | None) -> int:
    left = inside.by_name.get(one.operands[0]) if one.operands else None
    if left is None or dims is None:
        return 1
    return math.prod(left.arrays[0].shape[int(dim)] for dim in dims.split(",") if dim)


def _custom(one: Instruction) -> bool:
    return one.opcode == "custom-call" and bool(_COMPUTE_CALL.search(one.attributes[:400] + one.name))
