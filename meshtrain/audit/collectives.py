"""The collectives of a compiled program: what is sent, by whom, how often a step, from where, and beside what.

Loops multiply by their trip count. What stands in a branch may run less often than its loop turns: `branch` says so,
and `times` is then the most. A collective that the compiler has combined of several arrays is taken apart again.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from meshtrain.audit.groups import Partners, pair_partners, pairs, partners, replica_groups
from meshtrain.audit.hlo import Array, Computation, Instruction, Module
from meshtrain.audit.origin import Origin, Origins
from meshtrain.audit.overlap import Beside, beside
from meshtrain.cost.collective import wire_factor
from meshtrain.parallel.pipeline.worker import KEEPING

KINDS = {
    "all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all", "ragged-all-to-all": "all_to_all", "collective-permute": "permute",
    "collective-broadcast": "all_gather",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One array of one collective. bytes: on one device and for one time, the larger of what goes in and comes out.

    dtype: XLA's word; shape: of that larger side. times: how often a step. combined: the collective's name, shared by
    the arrays that it sends together. source: line of the package. beside: what the schedule has beside it. counted:
    whether the trip counts of all loops around it are known. ragged: whether the bytes are what it sends at most.
    """

    kind: str
    partners: Partners
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    times: int
    branch: bool
    phase: str
    op: str
    source: str
    combined: str
    beside: Beside
    counted: bool = True
    ragged: bool = False

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device sends in a step by ring algorithms; of a permute, those of a device that sends."""
        return self.bytes * self.times * wire_factor(self.kind, self.partners.size)


def read_collectives(module: Module, axis_sizes: Mapping[str, int], pipelined: bool = False) -> list[Found]:
    """Every array of every collective that runs, in the order of the program. pipelined: whether the step is one of a
    pipeline, whose passes JAX does not name."""
    reader = _Reader(module, dict(axis_sizes), math.prod(axis_sizes.values()), Origins(module), pipelined)
    return [one for one in reader.walk(module.entry, 1, False, True, Origin()) if one.partners.size > 1]


@dataclass
class _Reader:
    module: Module
    axis_sizes: dict[str, int]
    num_devices: int
    origins: Origins
    pipelined: bool

    def walk(self, name: str, times: int, branch: bool, counted: bool, around: Origin) -> Iterator[Found]:
        """What runs when this computation does."""
        computation = self.module.computations[name]
        for one in computation.instructions:
            kind, start = _kind(one.opcode)
            if kind:
                yield from self._found(one, computation, kind, start, times, branch, counted, around)
            elif one.opcode == "while":
                trips, asks = one.trip_count, self.module.turns_on_a_flag(one)
                inner = self.origins.named(one)
                known = counted and (asks or trips is not None)
                for body in one.called.get("body", ()):
                    yield from self.walk(
                        body, times * (trips or 1), branch or asks, known, inner if inner.op else around
                    )
            elif one.opcode == "conditional":
                called = one.called
                keys = ("branch_computations", "true_computation", "false_computation")
                for body in dict.fromkeys(body for key in keys for body in called.get(key, ())):
                    yield from self.walk(body, times, True, counted, around)
            elif one.opcode in ("call", "async-start"):
                for body in one.called.get("to_apply", ()) + one.called.get("calls", ()):
                    yield from self.walk(body, times, branch, counted, around)

    def _found(
        self, one: Instruction, inside: Computation, kind: str, start: bool, times: int, branch: bool, counted: bool,
        around: Origin,
    ) -> Iterator[Found]:  # fmt: skip
        origin = self.origins.of(one, inside, around)
        if kind == "permute":
            with_whom = pair_partners(pairs(one.attributes), self.axis_sizes)
        else:
            with_whom = partners(replica_groups(one.attributes, self.num_devices), self.axis_sizes)
        phase = self._phase(origin, around)
        whole = Found(
            kind, with_whom, "", (), 0, times, branch, phase, origin.op, origin.source, one.name,
            beside(one, inside, self.module) if start else Beside(), counted, one.opcode.startswith("ragged"),
        )  # fmt: skip
        for array in self._arrays(one, inside, kind, start, with_whom.size):
            yield replace(whole, dtype=array.dtype, shape=array.shape, bytes=array.bytes)

    def _arrays(self, one: Instruction, inside: Computation, kind: str, start: bool, size: int) -> list[Array]:
        """The larger side of each array that is sent, a concatenation taken apart."""
        operands = [inside.by_name.get(name) for name in one.operands]
        given = [array for operand in operands if operand for array in operand.arrays]
        results = list(one.arrays)
        # A start has what goes in, then what comes out, ...; that of an all-reduce so only in newer programs.
        if start and len(one.parts) > 1 and (kind != "all_reduce" or len(results) == 2 * len(given)):
            results = list(one.parts[1])
        if one.opcode.startswith("all-to-all") and len(results) == len(given) == size > 1:
            return [Array(results[0].dtype, (size, *results[0].shape))]  # one array, in parts
        if "ragged" in one.opcode:  # buffers for the worst case; no more than the smaller one holds is sent
            return [min((*given[:1], *results[:1]), key=lambda array: array.bytes)]
        if len(given) != len(results):
            return results
        larger = [max(pair, key=lambda array: array.bytes) for pair in zip(given, results, strict=True)]
        if len(larger) == 1 and kind == "all_reduce" and operands[0] is not None:
            return self._taken_apart(operands[0], inside) or larger
        return larger

    def _taken_apart(self, operand: Instruction, inside: Computation) -> list[Array]:
        """The arrays that a concatenation holds; none where it is no concatenation."""
        home = inside
        if operand.opcode == "fusion":
            home = self.module.computations.get(next(iter(operand.called.get("calls", ("",)))), inside)
            operand = home.root
        if operand.opcode != "concatenate":
            return []
        return [array for name in operand.operands if name in home.by_name for array in home.by_name[name].arrays]

    def _phase(self, origin: Origin, around: Origin) -> str:
        if self.pipelined:
            text = origin.op or around.op
            if "transpose(" in text or ("jvp(" in text and KEEPING not in text):
                return "backward"  # a pipeline's backward op runs the forward pass again
            return "forward" if "while/body" in text else "update"
        return origin.phase if "jvp(" in origin.op or not around.op else around.phase


def _kind(opcode: str) -> tuple[str, bool]:
    """(kind, whether this is the start of it); "" for the end and for all that is no collective."""
    base, start = opcode.removesuffix("-start"), opcode.endswith("-start")
    return KINDS.get(base, ""), start
