"""The pipeline schedules: each is a function that returns a table. A new schedule is a new function and its line below.

A schedule is written as each stage's order of ops; the ticks follow from what an op must wait for.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from meshtrain.errors import InputError, nearest
from meshtrain.parallel.pipeline.table import B, F, Table, W
from meshtrain.parallel.pipeline.table_file import read_table
from meshtrain.parallel.pipeline.timing import Op, table_from_orders


def gpipe(num_stages: int, num_microbatches: int) -> Table:
    """All forward passes, then all backward passes (Huang et al. 2019). Holds every microbatch's input at once."""
    orders = [[(op, s, i) for op in (F, B) for i in range(num_microbatches)] for s in range(num_stages)]
    return table_from_orders("gpipe", orders, num_stages)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Table:
    """1F1B (PipeDream-flush, Narayanan et al. 2021): stage s runs at most stages - s microbatches ahead."""
    orders = []
    for s in range(num_stages):
        forward = [(F, s, i) for i in range(num_microbatches)]
        backward = [(B, s, i) for i in range(num_microbatches)]
        orders.append(_alternate(forward, backward, num_stages - 1 - s))
    return table_from_orders("1f1b", orders, num_stages)


def interleaved(num_stages: int, num_microbatches: int, num_chunks: int) -> Table:
    """1F1B over chunks x stages pieces (Narayanan et al. 2021, figure 4): the bubble is cut by the number of chunks.

    A stage takes a group of at least `stages` microbatches through one chunk, then the same group through the next;
    where `stages` does not divide the number of microbatches the groups are larger, so that no piece waits. With fewer
    microbatches than stages it runs, but the ring does not fill: chunks x stages + microbatches - 1 ticks each way.
    """
    groups = _groups(num_microbatches, num_stages)
    orders = []
    for s in range(num_stages):
        forward = [(F, c * num_stages + s, i) for g in groups for c in range(num_chunks) for i in g]
        backward = [(B, c * num_stages + s, i) for g in groups for c in reversed(range(num_chunks)) for i in g]
        ahead = num_stages - 1 - s
        if num_chunks > 1:
            ahead = 2 * ahead + (num_chunks - 1) * len(groups[0])
        orders.append(_alternate(forward, backward, ahead))
    return table_from_orders("interleaved", orders, num_stages)


def zb_h1(num_stages: int, num_microbatches: int) -> Table:
    """ZB-H1 (Qi et al. 2023): 1F1B whose weight gradients wait and fill the bubble; still `stages` live inputs.

    Stage s makes the weight gradients of a microbatch s backward passes after its input gradient: the last stage
    answers without delay and makes them last.
    """
    orders: list[list[Op]] = []
    for s in range(num_stages):
        ahead = num_stages - s
        order: list[Op] = [(F, s, i) for i in range(min(ahead, num_microbatches))]
        for i in range(num_microbatches):
            order.append((B, s, i))
            if i >= s:
                order.append((W, s, i - s))
            if i + ahead < num_microbatches:
                order.append((F, s, i + ahead))
        orders.append(order + [(W, s, i) for i in range(max(num_microbatches - s, 0), num_microbatches)])
    return table_from_orders("zb_h1", orders, num_stages)


SCHEDULES: dict[str, Callable[..., Table]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb_h1": zb_h1,
}


def schedule(name: str, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Table:
    """The table of the schedule of this name, or of a CSV file where `name` ends in .csv; InputError for a bad value.

    num_chunks: pieces of the model per stage (`pipeline.repeats`); only "interleaved" and files take more than one.
    """
    for key, value in (("repeats", num_chunks), ("microbatches", num_microbatches)):
        if value < 1:
            raise InputError(f"pipeline.{key}: must be at least 1, not {value}.")
    if name.endswith(".csv"):
        table = read_table(Path(name))
        for key, mine, asked in (
            ("microbatches", table.num_microbatches, num_microbatches),
            ("repeats", table.num_chunks, num_chunks),
            ("schedule (stages)", table.num_stages, num_stages),
        ):
            if mine != asked:
                raise InputError(f"pipeline.{key}: {asked}, but the table in {name} is made for {mine}.")
        return table
    if name not in SCHEDULES:
        raise InputError(
            f"pipeline.schedule: {name!r} is not one of {', '.join(SCHEDULES)}, nor a file that ends in .csv."
            + nearest(name, SCHEDULES)
        )
    if name == "interleaved":
        return interleaved(num_stages, num_microbatches, num_chunks)
    if num_chunks > 1:
        raise InputError(
            f"pipeline.repeats: {num_chunks}, but {name} runs one piece on each stage; write repeats=1, or"
            ' schedule="interleaved".'
        )
    return SCHEDULES[name](num_stages, num_microbatches)


def _alternate(forward: list[Op], backward: list[Op], ahead: int) -> list[Op]:
    """`ahead` forward passes, then one forward, one backward in turn, then the backward passes that are left."""
    ahead = min(ahead, len(forward))
    paired = [op for pair in zip(forward[ahead:], backward, strict=False) for op in pair]
    return [*forward[:ahead], *paired, *backward[len(forward) - ahead :]]


def _groups(num_microbatches: int, num_stages: int) -> list[range]:
    """Microbatches dealt out to as many groups of at least `num_stages` as there can be, of sizes as even as can be."""
    number = max(num_microbatches // num_stages, 1)
    edges = [-(-num_microbatches * g // number) for g in range(number + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
