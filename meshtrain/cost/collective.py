"""`Collective`: one exchange between devices, as the plan predicts it and as the audit finds it in a program.

Kinds: all_reduce (every device has [n], each gets the sum), all_gather ([n / N] each -> all [n]), reduce_scatter ([n]
each -> the parts [n / N] of the sum), all_to_all (every device deals out its N parts), permute ([n] to one other).
"""

from dataclasses import dataclass

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
PHASES = ("forward", "backward", "update")


@dataclass(frozen=True)
class Collective:
    """A collective that runs `count` times a step on each device.

    axes: the mesh axes that its devices differ in, slowest first; size: how many devices take part. bytes: on one
    device and for one time, the larger of what goes in and what comes out; of a permute the message. phase: "forward",
    "backward" or "update". dim: the dim along which it runs, "" for a sum of whole arrays. why: for people. room: of a
    ragged exchange, which sends no more than there is, what its buffer can hold; `bytes` are those of an even load.
    """

    kind: str
    axes: tuple[str, ...]
    size: int
    bytes: int
    count: int
    phase: str
    dim: str
    why: str
    room: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.phase not in PHASES:
            raise ValueError(f"kind {self.kind!r} or phase {self.phase!r} is none of {KINDS} or {PHASES}")

    @property
    def wire_bytes(self) -> float:
        """Bytes that a device sends in a step, by ring algorithms (Patarasuk and Yuan 2009): (N - 1) / N of `bytes`,
        twice that for an all-reduce, all of it for a permute."""
        return self.bytes * self.count * wire_factor(self.kind, self.size)


def wire_factor(kind: str, size: int) -> float:
    """Bytes sent by a device for each byte of a collective over `size` devices; 0 where there is only one."""
    if kind == "permute":
        return float(size > 1)
    share = (size - 1) / size
    return 2 * share if kind == "all_reduce" else share
