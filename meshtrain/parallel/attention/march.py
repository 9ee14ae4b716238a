"""Walks through a ring's schedule on one device: what to send when, and which chunks meet in each step.

Sends are the same on every device and stand outside every branch: on a CPU, and wherever the compiler counts on it, a
permute that some devices skip would wait for them or pair with another one. Steps that look alike are one scan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshtrain.parallel.attention.schedule import NOTHING, Schedule, Step
from meshtrain.parallel.shard import shard_index

Found = TypeVar("Found")

ROLLED = 3  # steps alike from which on they are a loop; fewer are spelled out


@dataclass(frozen=True)
class Meeting:
    """One slot of a step on this device: which chunk of its queries meets which chunk of the keys it holds.

    A number that is the same on all devices is an int, so that no device has to choose.
    """

    query: int | jax.Array
    key: int | jax.Array
    busy: jax.Array | None  # None: every device has something to do in this slot

    def queries(self, x: jax.Array, dim: int) -> jax.Array:
        """The chunk of queries out of [.., chunk, token, ..], `dim` being that of the chunks."""
        return _pick(x, self.query, dim)

    def keys(self, x: jax.Array, dim: int) -> jax.Array:
        """The chunk of keys out of [.., chunk, token, ..]."""
        return _pick(x, self.key, dim)

    def put(self, x: jax.Array, value: jax.Array) -> jax.Array:
        """x [B, chunk, ..] with the chunk of queries replaced."""
        return lax.dynamic_update_index_in_dim(x, value, self.query, 1)

    def put_keys(self, x: jax.Array, value: jax.Array) -> jax.Array:
        """x [B, chunk, ..] with the chunk of keys replaced."""
        return lax.dynamic_update_index_in_dim(x, value, self.key, 1)

    def unless_idle(self, compute: Callable[[Found], Found], found: Found) -> Found:
        """`compute(found)`, or `found` on a device that has nothing to do in this slot. There is no send in it."""
        return compute(found) if self.busy is None else lax.cond(self.busy, compute, lambda same: same, found)


@dataclass(frozen=True)
class March:
    """A schedule and the axes of its devices, the first axis slowest. mesh: all axes and sizes, as declared."""

    schedule: Schedule
    axes: tuple[str, ...]
    mesh: tuple[tuple[str, int], ...]

    def cut(self, x: jax.Array, dim: int) -> jax.Array:
        """[.., token, ..] -> [.., chunk, token, ..]."""
        return x.reshape(*x.shape[:dim], self.schedule.chunks, -1, *x.shape[dim + 1 :])

    def send(self, tree: Any, by: int) -> Any:
        """What the device `by` places before this one has; the tree itself for 0."""
        num = self.schedule.num_shards
        if by % num == 0:
            return tree
        # A permute over several axes numbers devices in the mesh's order, whatever order the axes are named in.
        sizes = {axis: size for axis, size in self.mesh if axis in self.axes}
        places = np.arange(num).reshape(list(sizes.values()))
        numbers = places.transpose([list(sizes).index(axis) for axis in self.axes]).ravel()
        pairs = [(int(numbers[device]), int(numbers[(device + by) % num])) for device in range(num)]
        return jax.tree.map(lambda x: lax.ppermute(x, tuple(sizes), pairs), tree)

    def home(self, tree: Any) -> Any:
        """What belongs to the keys of the last step -> to their own device."""
        return self.send(tree, -self.schedule.steps[-1].shift)


@dataclass(frozen=True)
class _Slot:
    """What is known of a slot beforehand: the chunks that are the same on all devices, and whether some have none."""

    query: int | None
    key: int | None
    idle: bool


@dataclass(frozen=True)
class _Plan:
    """What is known of a step beforehand; steps of the same plan are one loop. came, go: distances of the sends before
    and in this step; go is None in the last."""

    came: int
    go: int | None
    slots: tuple[_Slot, ...]


def walk(
    march: March, own: Any, local: Callable[[], Found], step: Callable[[Found, Any, list[Meeting], Any], Found]
) -> Found:
    """`local()` for the step in which each device has its own keys; then `found = step(found, held, meetings, send)`.

    own: what goes round; held: what this device has of it in that step, already on its way to the next device. send: to
    be called on what must follow what goes round (the sum of its gradients): from where it was in the step before.
    """
    rest = march.schedule.steps[1:]
    held = march.send(own, rest[0].shift) if rest else own
    found = local()
    shifts = [s.shift for s in march.schedule.steps]
    plans = [
        _Plan(s.shift - before, after - s.shift if after is not None else None, _slots(s))
        for s, before, after in zip(rest, shifts, [*shifts[2:], None], strict=False)
    ]
    number = shard_index(march.axes)

    def one(plan: _Plan, found: Found, held: Any, entries: jax.Array) -> tuple[Found, Any]:
        following = held if plan.go is None else march.send(held, plan.go)
        meetings = [_meeting(slot, entries[:, i]) for i, slot in enumerate(plan.slots)]
        return step(found, held, meetings, lambda x: march.send(x, plan.came)), following

    for plan, group in groupby(zip(plans, rest, strict=True), key=lambda item: item[0]):
        steps = [s for _, s in group]
        tables = jnp.asarray(np.stack([[s.queries, s.keys] for s in steps]), jnp.int32)
        entries = lax.dynamic_index_in_dim(tables, number, 3, keepdims=False)  # [step, queries | keys, slot]
        if len(steps) < ROLLED:
            for entry in entries:
                found, held = one(plan, found, held, entry)
            continue

        def body(carry: tuple[Found, Any], entry: jax.Array, plan: _Plan = plan) -> tuple[tuple[Found, Any], None]:
            return one(plan, *carry, entry), None

        (found, held), _ = lax.scan(body, (found, held), entries)
    return found


def _slots(step: Step) -> tuple[_Slot, ...]:
    def known(chunks: np.ndarray) -> int | None:
        values = set(chunks.tolist()) - {NOTHING}
        return values.pop() if len(values) == 1 else None

    return tuple(
        _Slot(known(queries), known(keys), bool((queries == NOTHING).any()))
        for queries, keys in zip(step.queries, step.keys, strict=True)
    )


def _meeting(slot: _Slot, entry: jax.Array) -> Meeting:
    query, key = jnp.maximum(entry, 0)
    return Meeting(
        query if slot.query is None else slot.query,
        key if slot.key is None else slot.key,
        entry[0] != NOTHING if slot.idle else None,
    )


def _pick(x: jax.Array, index: int | jax.Array, dim: int) -> jax.Array:
    if isinstance(index, int):
        return lax.index_in_dim(x, index, dim, keepdims=False)
    return lax.dynamic_index_in_dim(x, index, dim, keepdims=False)
