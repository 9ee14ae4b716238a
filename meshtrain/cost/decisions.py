"""The order of decisions, each with the inequality that decided it: data, ZeRO, tensor, pipeline, context, experts.

    1 state and activations fit one device       -> data parallelism
    2 state does not fit                         -> ZeRO-1, 2, 3 over the outermost axis
    3 less than a row for each device, or still  -> tensor parallelism inside the fast links
      no fit, or its exchange is not hidden
    4 still                                      -> pipeline stages across nodes; at once where there are no fast links
    5 still, with long rows                      -> context parallelism outside tensor
    6 a mixture of experts                       -> experts dealt out, where that fits better or is faster: inside the
                                                    fast links or over the network, with the tensor axis or without

A step is taken where the ones before leave no layout that fits, or none that does not wait: more than WAITS of its time
for the exchange of weights and gradients, or more than IDLE of it for other stages.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshtrain.cost.choice import MOST_ROWS, Choice, least_rows
from meshtrain.cost.search import NO_STAGE, Found, Search, Where
from meshtrain.cost.state import per_parameter
from meshtrain.cost.verdict import describe, just, seconds, waiting, waits
from meshtrain.errors import InputError
from meshtrain.layout.words import plural, size_text
from meshtrain.model.flops import count_parameters

FASTER = 0.98  # of a step's time, below which it is worth dealing experts out
FEW = 2  # layouts with experts that are asked for at a time
LONG = 32768  # tokens of a row from which on its length is cut
MOST_DEVICES = 64  # times as many, when asked what would help


@dataclass(frozen=True)
class Decision:
    """A step of the order: what it asks, what was found, and what was taken ("" where the step was passed over)."""

    number: int
    title: str
    found: tuple[str, ...]
    taken: str


@dataclass(frozen=True)
class Outcome:
    """The layout that was decided on, the steps that led there, and the best of the last step, fastest first."""

    best: Found
    decisions: tuple[Decision, ...]
    others: tuple[Found, ...]


def decide(search: Search) -> Outcome:
    """The decisions in their order; InputError where no layout fits, with what is missing and what would help."""
    order = _Order(search)
    steps = (order.data, order.zero, order.tensor, order.stage, order.context)
    for step in steps:
        step()
        if order.good:
            break
    if search.task.config.model.moe is not None:
        order.experts()
    fitting = order.good or sorted([*order.fitting, *order.waiting()], key=lambda found: found.time.seconds)
    if not fitting:
        raise InputError(nothing_fits(search))
    if not order.good:
        text = "no layout is free of long waits; the fastest that fits is taken"
        order.decisions.append(Decision(len(order.decisions) + 1, "What is left", (text,), describe(fitting[0].choice)))
    return Outcome(fitting[0], tuple(order.decisions), tuple(fitting))


class _Order:
    """The steps; `good` is set by the one that ends them. `fitting`: what fits but waits too long."""

    def __init__(self, search: Search):
        self.search, self.task = search, search.task
        self.decisions: list[Decision] = []
        self.good: list[Found] = []
        self.fitting: list[Found] = []
        self.tensor_parts = 1
        self.late: list[Where] = []  # kinds of which all wait too long; whether any of them fits was not asked

    def data(self) -> None:
        """1: everything on each device."""
        task = self.task
        constants = per_parameter(task.config)
        parameters = count_parameters(task.config.model)
        state = constants.total * parameters
        said = [
            f"{parameters:,} parameters x {constants.total:.4g} bytes (weights {constants.params:g}, gradients"
            f" {constants.grads:g}, masters and moments {constants.optimizer:.4g}) = {size_text(state)}"
            f" {'<=' if state <= task.usable else '>'} {size_text(task.usable)} usable of"
            f" {size_text(task.cluster.memory.value)}"
        ]
        self._close(1, "Does all of it fit one GPU?", said, lambda c: _is(c, 1, 1, 1) and c.zero < 1)

    def zero(self) -> None:
        """2: classes of the state in parts, one after the other."""
        said: list[str] = []
        for stage in (1, 2, 3):

            def where(choice: Choice, stage: int = stage) -> bool:
                return _is(choice, 1, 1, 1) and choice.zero in (stage, NO_STAGE)

            if self._try(said, f"ZeRO-{stage}", where):
                break
        self._add(2, "Does it fit with the state in parts?", said)

    def tensor(self) -> None:
        """3: layers in parts, inside the fast links."""
        task, said = self.task, list[str]()
        if task.cluster.fast_gpus == 1:
            said.append(
                f"{task.cluster.name} has no fast links (fast_gpus=1): stages are preferred to tensor parallelism"
            )
        sizes = sorted({sizes.tensor for sizes in self.search.sizes if sizes.tensor > 1})
        for number in sizes:

            def where(choice: Choice, number: int = number) -> bool:
                return _is(choice, 1, 1, number)

            if self._try(said, f"tensor={number}", where):
                break
        needed = [number for number in sizes if task.num_devices / number <= task.global_batch]
        self.tensor_parts = min(needed) if needed and task.num_devices > task.global_batch else max(sizes, default=1)
        if sizes and not self.good:
            said.append(
                f"tensor={2 * max(sizes)} is out of the question: the fast links join"
                f" {plural(task.cluster.fast_gpus, 'GPU')}"
                if 2 * max(sizes) > task.cluster.fast_gpus
                else f"tensor={2 * max(sizes)} does not divide heads, key heads or MLP"
            )
        self._add(3, "Are layers or the batch too small a share?", said)

    def stage(self) -> None:
        """4: the stack of layers in pieces."""
        tensor = self.tensor_parts
        self._close(
            4, "Does it fit in stages?", [], lambda c: c.sizes.stage > 1 and _is(c, c.sizes.stage, 1, tensor), "stages"
        )

    def context(self) -> None:
        """5: rows in parts."""
        tensor, length = self.tensor_parts, self.task.length
        if length < LONG:
            said = f"{length:,} tokens < {LONG:,}: rows are not long, and shards of them would be short"
            self._add(5, "Are rows too long?", [said])
            return

        def where(choice: Choice) -> bool:
            return choice.sizes.context > 1 and choice.sizes.tensor == tensor and choice.expert_parts == 1

        self._close(5, "Are rows too long?", [], where, "context")

    def experts(self) -> None:
        """6: experts dealt out, on meshes like the one that was found without, or on those of each step in turn."""
        said, before, number = [self._of_experts()], self.good, self.tensor_parts
        kinds: list[tuple[str, Where]] = [
            ("data parallelism", lambda c: c.sizes[1:] == (1, 1, 1)),
            (f"tensor={number}", lambda c: c.sizes[1:] == (1, 1, number) and number > 1),
            ("stages", lambda c: c.sizes.stage > 1 and c.sizes[2:] == (1, 1)),
            (f"stages and tensor={number}", lambda c: c.sizes.stage > 1 and c.sizes[2:] == (1, number) and number > 1),
            ("context", lambda c: c.sizes.context > 1 and c.sizes.tensor == number),
        ]
        if before:
            sizes = before[0].choice.sizes
            kinds = [("the same mesh", lambda c: c.sizes == sizes)]
        for name, kind in kinds:
            good = [*self._near(said, name, kind), *self._far(said, name, kind)]
            if good:
                self.good = sorted(good, key=lambda found: found.time.seconds)
                break
        if before and self.good is not before and self.good[0].time.seconds > FASTER * before[0].time.seconds:
            said.append(
                f"{seconds(self.good[0])} > {FASTER:g} x {before[0].time.seconds:.3g} s without: experts stay with the"
                " other weights of their layers"
            )
            self.good = before
        self._add(6, "Where do the experts live?", said)

    def _of_experts(self) -> str:
        """By model: how much of it experts are."""
        model = self.task.config.model
        assert model.moe is not None
        count, others = self.search.parameters
        state = per_parameter(self.task.config).total * count
        rows = least_rows(model)
        without = f"; without a capacity devices would compute {rows:g} times the rows that there are, > {MOST_ROWS}"
        return (
            f"experts have {count / (count + others):.0%} of the parameters, {size_text(state)} with gradients, masters"
            f" and moments; a token meets {model.moe.top_k} of {model.moe.num_experts}"
            f"{without if rows > MOST_ROWS else ''}"
        )

    def _near(self, said: list[str], name: str, kind: Where) -> list[Found]:
        fast = self.task.cluster.fast_gpus
        name = f"{name}, experts inside the fast links (at most {fast})"
        return self._dealt_out(said, name, kind, lambda c: c.experts.nodes == 1) if fast > 1 else []

    def _far(self, said: list[str], name: str, kind: Where) -> list[Found]:
        name = f"{name}, experts over the network"
        return self._dealt_out(said, name, kind, lambda c: c.experts.nodes > 1)

    def _dealt_out(self, said: list[str], name: str, kind: Where, how: Callable[[Any], bool]) -> list[Found]:
        """The good layouts of a kind whose experts are dealt out so."""

        def where(choice: Choice) -> bool:
            return kind(choice) and (choice.zero == NO_STAGE or (choice.expert_parts > 1 and how(choice)))

        timed = self.search.timed(where)
        free = [(choice, time) for choice, time in timed if not waiting(choice, time)]
        if timed and not free:
            choice, time = timed[0]
            said.append(f"{name}: all wait too long; the fastest, {describe(choice)}: {waiting(choice, time)}")
            self.late.append(where)
            return []
        good = self.search.fitting(FEW, free)
        if good:
            said.append(f"{name}: {self._fits(good[0])}")
            return good
        said.append(f"{name}: {self._refusal(where)}")
        return []

    def waiting(self) -> list[Found]:
        """Of the kinds that were passed over for waiting too long, what fits."""
        return [found for where in self.late for found in self.search.fastest(1, where)]

    def _fits(self, best: Found) -> str:
        usable = self.task.usable
        return (
            f"{describe(best.choice)} takes {size_text(best.memory.peak)} <= {size_text(usable)}, {seconds(best)} a"
            f" step{just(best, usable)}"
        )

    def _close(self, number: int, title: str, said: list[str], where: Where, name: str = "data parallelism") -> None:
        self._try(said, name, where)
        self._add(number, title, said)

    def _add(self, number: int, title: str, said: list[str]) -> None:
        taken = describe(self.good[0].choice) if self.good else ""
        self.decisions.append(Decision(number, title, tuple(said), taken))

    def _try(self, said: list[str], name: str, where: Where) -> bool:
        """Whether a good layout is among these; what was found is said."""
        search = self.search
        fitting = search.fastest(5, where)
        self.fitting += fitting
        good = [found for found in fitting if not waits(found)]
        if good:
            self.good = good
            said.append(f"{name}: {self._fits(good[0])}")
        elif fitting:
            best = fitting[0]
            said.append(f"{name}: {describe(best.choice)} takes {size_text(best.memory.peak)}, but {waits(best)}")
        else:
            said.append(f"{name}: {self._refusal(where)}")
        return bool(good)

    def _refusal(self, where: Where) -> str:
        likely, usable = self.search.likely_smallest(where), size_text(self.task.usable)
        if self.task.config.model.moe is not None and likely:  # (whose layers take longer to trace)
            choice = min(likely[:6], key=self.search.least)
            if (least := self.search.least(choice)) > self.task.usable:
                return f"more than {size_text(least)} > {usable} usable ({describe(choice)}; without activations)"
        found = self.search.smallest(where, tries=1 if self.task.config.model.moe else 6)
        if found is None:
            rows = self.task.global_batch / self.task.num_devices
            if rows < 1:
                return f"{rows:.3g} rows for each GPU < 1 ({self.task.global_batch:,} rows a step)"
            return "no mesh of this kind divides devices, batch, heads and length"
        choice, memory = found
        return (
            f"at least {size_text(memory.peak)} > {size_text(self.task.usable)} usable ({describe(choice)}: state"
            f" {size_text(memory.state)}, weights, gradients and their sums {size_text(_weights(memory.parts))},"
            f" activations and the rest {size_text(memory.peak - memory.state - _weights(memory.parts))})"
        )


def _weights(parts: object) -> int:
    names = ("compute copy", "gathered tables", "gradients", "gradient sums", "table gradients")
    return sum(part.num_bytes for part in parts if part.name in names)  # type: ignore[attr-defined]


def _is(choice: Choice, stage: int, context: int, tensor: int) -> bool:
    """A choice on such a mesh that leaves experts where the other weights of their layers are."""
    return choice.sizes[1:] == (stage, context, tensor) and choice.expert_parts == 1


def nothing_fits(search: Search) -> str:
    """By how much the smallest layout is too large, and what would help."""
    task = search.task
    found = search.smallest(lambda choice: True, tries=8)
    assert found is not None
    choice, memory = found
    helps = []
    number = 2 * task.num_devices
    while number <= MOST_DEVICES * task.num_devices:
        more = Search(replace(task, num_devices=number))
        try:
            smallest = more.smallest(lambda choice: True, tries=3)
        except InputError:
            smallest = None
        if smallest and smallest[1].peak <= task.usable:
            helps.append(f"--gpus {number:,} ({describe(smallest[0])}: {size_text(smallest[1].peak)})")
            break
        number *= 2
    largest = max(memory.parts, key=lambda part: part.num_bytes)
    helps.append(f"less of the largest part, {largest.name} ({size_text(largest.num_bytes)})")
    if memory.state < memory.peak / 2:
        helps.append("shorter rows (data.length)")
    helps.append("GPUs with more memory")
    return (
        f"no layout of {plural(task.num_devices, 'GPU')} of {task.cluster.name} holds this run: the smallest,"
        f" {describe(choice)}, takes {size_text(memory.peak)} of {size_text(task.usable)} usable:"
        f" {size_text(memory.peak - task.usable)} too much. What would help: {'; '.join(helps)}."
    )
