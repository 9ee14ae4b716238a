"""Where an instruction comes from: its part of the step, and the line of source that asked for it.

XLA keeps the name of the JAX operation and a stack frame for most instructions; those that it makes itself are told by
what they read, by the loop that they stand in, or by who reads them.
"""

import re
from dataclasses import dataclass
from functools import cached_property

from meshtrain.audit.hlo import Computation, Instruction, Module

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
FAR = 6  # how many instructions away a name is still taken from

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_ROW = re.compile(r"^(\d+) (?:\"([^\"]*)\"|\{(.*)\})$")


@dataclass(frozen=True)
class Origin:
    """op: the name of the JAX operation, "" where there is none; source: `parallel/embedding.py:38`."""

    op: str = ""
    source: str = ""

    @property
    def phase(self) -> str:
        """Of a step without a pipeline: forward and backward pass are told by JAX's own words for them."""
        if "transpose(" in self.op or "rematted_computation" in self.op:
            return BACKWARD
        return FORWARD if "jvp(" in self.op else UPDATE


class Origins:
    """The origins of a module's instructions."""

    def __init__(self, module: Module, root: str = "meshtrain/"):
        self.module, self.root = module, root

    def of(self, instruction: Instruction, computation: Computation, around: Origin) -> Origin:
        """Its own origin; else the nearest one of what it reads or of what reads it, else that of the loop around."""
        own = self.named(instruction)
        if own.op:
            return own
        for step in (self._before, self._behind):
            found = step(instruction, computation)
            if found.op:
                return found
        return Origin(around.op, "")

    def named(self, instruction: Instruction) -> Origin:
        """What the instruction itself says."""
        op = _OP_NAME.search(instruction.attributes)
        frame = _FRAME.search(instruction.attributes)
        if frame:
            return Origin(op[1] if op else "", self._line(int(frame[1])))
        source = _SOURCE.search(instruction.attributes)
        where = f"{self._short(source[1])}:{source[2]}" if source else ""
        return Origin(op[1] if op else "", where)

    def _before(self, instruction: Instruction, computation: Computation) -> Origin:
        near = [instruction]
        for _ in range(FAR):
            near = [
                computation.by_name[name] for one in near for name in one.operands[:4] if name in computation.by_name
            ]
            if found := self._first(near):
                return found
        return Origin()

    def _behind(self, instruction: Instruction, computation: Computation) -> Origin:
        near = [instruction]
        for _ in range(FAR):
            near = [user for one in near for user in computation.users.get(one.name, [])[:4]]
            if found := self._first(near):
                return found
        return Origin()

    def _first(self, near: list[Instruction]) -> Origin | None:
        for one in near:
            if one.opcode not in ("tuple", "get-tuple-element", "parameter", "while") and (found := self.named(one)).op:
                return found
        return None

    @cached_property
    def _tables(self) -> dict[str, dict[int, str]]:
        """FileNames, FunctionNames, FileLocations and StackFrames: number -> text, at the head of the text."""
        tables: dict[str, dict[int, str]] = {}
        current: dict[int, str] | None = None
        for line in self.module.text.splitlines():
            if re.fullmatch(r"FileNames|FunctionNames|FileLocations|StackFrames", line):
                current = tables[line] = {}
            elif current is not None:
                row = _ROW.match(line)
                if row:
                    current[int(row[1])] = row[2] if row[2] is not None else row[3]
                elif line.strip():
                    break
        return tables

    def _line(self, frame: int) -> str:
        """The innermost line of the package on this stack."""
        seen: set[int] = set()
        inner = ""
        while frame and frame not in seen:
            seen.add(frame)
            fields = _fields(self._tables.get("StackFrames", {}).get(frame, ""))
            place = _fields(self._tables.get("FileLocations", {}).get(fields.get("file_location_id", 0), ""))
            file = self._tables.get("FileNames", {}).get(place.get("file_name_id", 0), "")
            where = f"{self._short(file)}:{place.get('line', 0)}" if file else ""
            if self.root in file:
                return where
            inner = inner or where
            frame = fields.get("parent_frame_id", 0)
        return inner

    def _short(self, file: str) -> str:
        return file.rpartition(self.root)[2] if self.root in file else file.rpartition("/")[2]


def _fields(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", text)}
