"""Which layouts fit a cluster, and which of them is fastest: every mesh, ZeRO stage, schedule, microbatch and remat.

Candidates are timed first (cheap) and then asked in the order of their time whether they fit; so the first ones that do
are the fastest, and only as many memories are worked out as it takes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from meshtrain.cost.choice import AxisNames, Choice, Sizes, choices, meshes
from meshtrain.cost.cluster import USABLE, Cluster
from meshtrain.cost.memory import Memory, least_memory, predict_memory
from meshtrain.cost.state import PerParameter, count_expert_parameters, per_parameter
from meshtrain.cost.time import StepTime, step_time
from meshtrain.errors import InputError
from meshtrain.layout import Layout, Placement, place_abstract
from meshtrain.layout.layout import REMAT
from meshtrain.layout.pipeline import KEEPS
from meshtrain.model.flops import count_parameters
from meshtrain.step import StepConfig

# A test of choices. It is also asked about a whole mesh, by a choice of no ZeRO stage, before those on it are made.
Where = Callable[[Choice], bool]
NO_STAGE = -1


@dataclass(frozen=True)
class Task:
    """What is to run where: a step of `global_batch` rows of `length` tokens on `num_devices` GPUs of a cluster."""

    config: StepConfig
    global_batch: int
    length: int
    packed: bool
    cluster: Cluster
    num_devices: int
    names: AxisNames

    @property
    def usable(self) -> float:
        """Bytes of a device that a plan may use."""
        return USABLE * self.cluster.memory.value

    def place(self, choice: Choice) -> Placement:
        """The choice's layout on as many devices as it takes."""
        return place_abstract(Layout.parse(choice.layout(self.names), "found"), self.num_devices)

    def memory(self, choice: Choice, quick: bool = True) -> Memory:
        """What the choice holds on a device."""
        return predict_memory(
            self.config, self.place(choice), self.global_batch, self.length, packed=self.packed, quick=quick
        )

    def time(self, choice: Choice) -> StepTime:
        """How long the choice's step takes."""
        return step_time(self.config, self.place(choice), self.global_batch, self.length, self.cluster)


@dataclass(frozen=True)
class Found:
    """A choice with what it takes."""

    choice: Choice
    time: StepTime
    memory: Memory


@dataclass
class Search:
    """All candidates of a task. Nothing is worked out twice."""

    task: Task
    memories: dict[Choice, Memory] = field(default_factory=dict)
    times: dict[Choice, StepTime] = field(default_factory=dict)

    @cached_property
    def sizes(self) -> list[Sizes]:
        """Every mesh; InputError where there is none."""
        task = self.task
        found = list(
            meshes(task.config.model, task.num_devices, task.global_batch, task.length, task.cluster.fast_gpus)
        )
        if not found:
            raise InputError(no_mesh(task))
        return found

    def timed(self, where: Where) -> list[tuple[Choice, StepTime]]:
        """Candidates whose state fits, the fastest first."""
        found = []
        for choice in self.all(where):
            if self.state_bytes(choice) <= self.task.usable:
                try:
                    found.append((choice, self.time(choice)))
                except InputError:
                    continue  # a schedule or exchange that does not serve this mesh
        return sorted(found, key=lambda item: item[1].seconds)

    def time(self, choice: Choice) -> StepTime:
        """How long a choice's step takes."""
        if choice not in self.times:
            self.times[choice] = self.task.time(choice)
        return self.times[choice]

    def all(self, where: Where) -> Iterator[Choice]:
        """Candidates of the meshes, and of the choices on them, that `where` takes."""
        task = self.task
        for sizes in self.sizes:
            if where(Choice(sizes, NO_STAGE)):
                every = choices(sizes, task.config.model, task.global_batch, task.cluster.fast_gpus)
                yield from (choice for choice in every if where(choice))

    @cached_property
    def parameters(self) -> tuple[int, int]:
        """How many parameters (experts have, all others have)."""
        model = self.task.config.model
        experts = count_expert_parameters(model)
        return experts, count_parameters(model) - experts

    @cached_property
    def _per_parameter(self) -> PerParameter:
        return per_parameter(self.task.config)

    def state_bytes(self, choice: Choice) -> float:
        """Bytes per device of masters, moments and the copy that computes: less than any choice takes in all."""
        return sum(self.kept_bytes(choice))

    def kept_bytes(self, choice: Choice) -> tuple[float, float]:
        """The same of (experts, all others)."""
        data, stage, context, tensor = choice.sizes
        kept = PerParameter(self._per_parameter.params, 0, self._per_parameter.optimizer)
        of_experts, others = self.parameters
        taken = choice.experts.parts if choice.experts else 1
        return (
            kept.state_bytes(of_experts / (stage * tensor * taken), choice.zero, data * context // taken),
            kept.state_bytes(others / (stage * tensor), choice.zero, data * context),
        )

    def least(self, choice: Choice) -> int:
        """Bytes of a device that a choice takes at least, in no time."""
        task = self.task
        return least_memory(task.config, task.place(choice), task.global_batch, task.length)

    def memory(self, choice: Choice) -> Memory:
        """What a choice holds, quickly."""
        if choice not in self.memories:
            self.memories[choice] = self.task.memory(choice)
        return self.memories[choice]

    def fastest(self, number: int, where: Where, tries: int = 300) -> list[Found]:
        """The fastest candidates that fit, one of each mesh."""
        return self.fitting(number, self.timed(where), tries)

    def fitting(self, number: int, timed: list[tuple[Choice, StepTime]], tries: int = 300) -> list[Found]:
        """The first of these that fit, one of each mesh."""
        found: list[Found] = []
        for choice, time in timed:
            if any(one.choice.sizes == choice.sizes for one in found):
                continue
            if self.least(choice) > self.task.usable:
                continue
            tries -= 1
            memory = self.memory(choice)
            if memory.peak <= self.task.usable:
                found.append(Found(choice, time, memory))
            if len(found) == number or tries == 0:
                break
        return found

    def likely_smallest(self, where: Where) -> list[Choice]:
        """Candidates, those first that take little memory."""
        return sorted(
            self.all(where),
            key=lambda c: (KEEPS.index(c.keep), -REMAT.index(c.remat), self.state_bytes(c), -c.microbatches, c.repeats),
        )

    def smallest(self, where: Where, tries: int = 6) -> tuple[Choice, Memory] | None:
        """The candidate that takes the least memory, of the likeliest; None where there is no candidate."""
        likely = self.likely_smallest(where)
        found = [(choice, self.memory(choice)) for choice in likely[:tries]]
        return min(found, key=lambda item: item[1].peak) if found else None


def no_mesh(task: Task) -> str:
    """Why no mesh divides these devices, and numbers that would work."""
    number, batch, fast = task.num_devices, task.global_batch, task.cluster.fast_gpus
    fitting = [n for n in range(1, 2 * number + 1) if any(meshes(task.config.model, n, batch, task.length, fast))]
    below = max((n for n in fitting if n < number), default=None)
    above = min((n for n in fitting if n > number), default=None)
    near = " or ".join(f"{n:,}" for n in (below, above) if n)
    model = task.config.model
    return (
        f"--gpus: {number:,} GPUs do not factor into a mesh: data parts must divide the {batch:,} rows of a step,"
        f" tensor parts the {model.num_heads} heads and the {fast} GPUs of a fast-link domain, and there are at most"
        f" {model.num_layers} stages. --gpus {near} would work, or another global_batch."
    )


def check_nodes(cluster: Cluster, num_devices: int) -> None:
    """InputError where the devices do not fill their nodes."""
    per_node = cluster.gpus_per_node
    if num_devices > per_node and num_devices % per_node:
        below = num_devices // per_node * per_node
        raise InputError(
            f"--gpus: {num_devices:,} GPUs are no whole number of nodes of {per_node} ({cluster.name});"
            f" {below:,} or {below + per_node:,} would work."
        )
