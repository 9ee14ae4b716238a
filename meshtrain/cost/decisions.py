"""The order of decisions, each with the inequality that decided it: data, ZeRO, tensor, pipeline, context.

    1 state and activations fit one device       -> data parallelism
    2 state does not fit                         -> ZeRO-1, 2, 3 over the outermost axis
    3 less than a row for each device, or still  -> tensor parallelism inside the fast links
      no fit, or its exchange is not hidden
    4 still                                      -> pipeline stages across nodes; at once where there are no fast links
    5 still, with long rows                      -> context parallelism outside tensor

A step is taken where the ones before leave no layout that fits, or none that does not wait: more than WAITS of its time
for the exchange of weights and gradients, or more than IDLE of it for other stages.
"""

from dataclasses import dataclass, replace

from meshtrain.cost.choice import Choice, Sizes
from meshtrain.cost.search import NO_STAGE, Found, Search, Where
from meshtrain.cost.state import per_parameter
from meshtrain.errors import InputError
from meshtrain.layout.words import plural, size_text
from meshtrain.model.flops import count_parameters

WAITS = 0.25
IDLE = 0.25
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
    fitting = order.good or sorted(order.fitting, key=lambda found: found.time.seconds)
    if not fitting:
        raise InputError(nothing_fits(search))
    if not order.good:
        text = "no layout is free of long waits; the fastest that fits is taken"
        order.decisions.append(Decision(6, "What is left", (text,), describe(fitting[0].choice)))
    return Outcome(fitting[0], tuple(order.decisions), tuple(fitting))


class _Order:
    """The steps; `good` is set by the one that ends them. `fitting`: what fits but waits too long."""

    def __init__(self, search: Search):
        self.search, self.task = search, search.task
        self.decisions: list[Decision] = []
        self.good: list[Found] = []
        self.fitting: list[Found] = []
        self.tensor_parts = 1

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
        self._close(1, "Does all of it fit one GPU?", said, lambda c: _is(c.sizes, 1, 1, 1) and c.zero < 1)

    def zero(self) -> None:
        """2: classes of the state in parts, one after the other."""
        said: list[str] = []
        for stage in (1, 2, 3):

            def where(choice: Choice, stage: int = stage) -> bool:
                return _is(choice.sizes, 1, 1, 1) and choice.zero in (stage, NO_STAGE)

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
                return _is(choice.sizes, 1, 1, number)

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
            4, "Does it fit in stages?", [], lambda c: c.sizes.stage > 1 and c.sizes[2:] == (1, tensor), "stages"
        )

    def context(self) -> None:
        """5: rows in parts."""
        tensor, length = self.tensor_parts, self.task.length
        if length < LONG:
            said = f"{length:,} tokens < {LONG:,}: rows are not long, and shards of them would be short"
            self._add(5, "Are rows too long?", [said])
            return
        self._close(5, "Are rows too long?", [], lambda c: c.sizes.context > 1 and c.sizes.tensor == tensor, "context")

    def _close(self, number: int, title: str, said: list[str], where: Where, name: str = "data parallelism") -> None:
        self._try(said, name, where)
        self._add(number, title, said)

    def _add(self, number: int, title: str, said: list[str]) -> None:
        taken = describe(self.good[0].choice) if self.good else ""
        self.decisions.append(Decision(number, title, tuple(said), taken))

    def _try(self, said: list[str], name: str, where: Where) -> bool:
        """Whether a good layout is among these; what was found is said."""
        search, task = self.search, self.task
        fitting = search.fastest(5, where)
        self.fitting += fitting
        good = [found for found in fitting if not waits(found)]
        if good:
            self.good = good
            best = good[0]
            said.append(
                f"{name}: {describe(best.choice)} takes {size_text(best.memory.peak)} <= {size_text(task.usable)},"
                f" {seconds(best)} a step{just(best, task.usable)}"
            )
        elif fitting:
            best = fitting[0]
            said.append(f"{name}: {describe(best.choice)} takes {size_text(best.memory.peak)}, but {waits(best)}")
        else:
            said.append(f"{name}: {self._refusal(where)}")
        return bool(good)

    def _refusal(self, where: Where) -> str:
        found = self.search.smallest(where)
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


def _is(sizes: Sizes, stage: int, context: int, tensor: int) -> bool:
    return sizes[1:] == (stage, context, tensor)


def waits(found: Found) -> str:
    """Why a layout that fits is not taken: what it waits for, and how long; "" for nothing."""
    time = found.time
    exchange = time.parts.get("weights", 0.0) + time.parts.get("data", 0.0)
    if exchange > WAITS * time.seconds:
        return (
            f"weights and gradients are waited for {exchange:.3g} s of {time.seconds:.3g} s a step,"
            f" {exchange / time.seconds:.0%} > {WAITS:.0%}"
        )
    idle = time.parts.get("bubble", 0.0)
    if idle > IDLE * time.seconds:
        share = f"{idle / time.seconds:.0%} > {IDLE:.0%}"
        return f"stages are idle {share} of the step ({plural(found.choice.microbatches, 'microbatch')})"
    return ""


def seconds(found: Found) -> str:
    """`12.3 s (MFU 45 %)`."""
    return f"{found.time.seconds:.3g} s (MFU {found.time.mfu:.0%})"


def just(found: Found, usable: float) -> str:
    """A warning where little is left."""
    share = found.memory.peak / usable
    return f"; just fits: {1 - share:.0%} headroom of what is usable" if share > 0.9 else ""


def describe(choice: Choice) -> str:
    """`data=128 x stage=16 x tensor=8, ZeRO-1, remat none, interleaved x 8, 16 microbatches`."""
    sizes = [f"{name}={size}" for name, size in zip(Sizes._fields, choice.sizes, strict=True) if size > 1]
    words = [" x ".join(sizes) or "one GPU"]
    if choice.zero > 0:
        words.append(f"ZeRO-{choice.zero}")
    if choice.remat != "none":
        words.append(f"remat {choice.remat}")
    if choice.schedule:
        words.append(choice.schedule + (f" x {choice.repeats}" if choice.repeats > 1 else ""))
    if choice.microbatches > 1:
        words.append(plural(choice.microbatches, "microbatch"))
    return ", ".join(words)


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
