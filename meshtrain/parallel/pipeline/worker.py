"""What one stage does in a tick: receive, run a piece forward, run one backward, make weight gradients.

Idle work is masked: its inputs are any finite array, its output is stored nowhere, its gradient is exactly zero.
What is kept between ticks is the plan's slots and nothing else: a backward pass starts from its piece's saved input
or, where the plan keeps them, from the residuals of its forward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from meshtrain.layout import Placement, Tree, map_specs
from meshtrain.parallel.pipeline.plan import IDLE, Plan
from meshtrain.parallel.pipeline.residuals import Form, put_together, take_apart
from meshtrain.parallel.pipeline.slots import add, add_at, at_most_once, masked, put, take
from meshtrain.parallel.pipeline.split import Cut, cut
from meshtrain.parallel.shard import on_shards

Batch = dict[str, jax.Array]

KEEPING = "keeping_residuals"  # in the names of ops of such a forward pass, which is traced as that of a gradient
BOUNDARY = ("slot", "batch", "stream", "embed")


@dataclass(frozen=True)
class Stages:
    """The model in three parts, as pure functions of weights and one microbatch.

    embed(rest, microbatch) -> x_BTD; layers(weights of one piece, x_BTD, microbatch, layer ids) -> x_BTD, where an id
    below 0 is a slot without a layer; head(rest, x_BTD, microbatch) -> (loss to differentiate, tree of float32 sums).
    `rest` is every weight outside the stack of layers, so a table used by both ends gets both parts of its gradient.
    With `told` the layers have something to tell beside their output: (x_BTD, a loss of their own to differentiate, a
    tree of float32 sums [layer of the piece, ..]).
    """

    embed: Callable[[Tree, Batch], jax.Array]
    layers: Callable[[Tree, jax.Array, Batch, jax.Array], Any]
    head: Callable[[Tree, jax.Array, Batch], tuple[jax.Array, Tree]]
    told: bool = False


class Carry(NamedTuple):
    """What a stage keeps from tick to tick."""

    x_slots: jax.Array  # slots of inputs
    dy_slots: jax.Array  # slots of gradients of outputs
    arrived: jax.Array  # what the stage before sent in the last tick
    answer: jax.Array  # gradient of an input, to be sent at the start of the next tick
    tape: Tree  # slots of what B leaves for W
    kept: Tree  # slots of what F leaves for B
    y_slots: jax.Array | None  # slots of outputs of the last piece; None where B starts from inputs
    layers: Tree  # float32 gradients [chunk, layer, ...]
    rest: Tree  # float32 gradients
    sums: Tree  # float32 [microbatch]
    told: Tree  # float32 [chunk, layer, ..]: what the layers tell, of all microbatches


@dataclass(frozen=True)
class Worker:
    """One stage: its weights [chunk, layer, ...], the whole batch [microbatch, ...], and what a tick does."""

    stages: Stages
    layers: Tree
    rest: Tree
    microbatches: Batch
    layer_ids: jax.Array
    plan: Plan
    place: Placement
    axis: str
    specs: Tree = None
    halves: list[Cut] = field(default_factory=list)  # the newest cut of a backward pass; all of them are alike
    forms: list[Form] = field(default_factory=list)  # of a backward pass, likewise

    def start(self, trains: bool) -> Carry:
        """Empty slots, zero gradients and sums."""
        microbatch = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in self.microbatches.items()}
        x = jax.eval_shape(self.stages.embed, self.rest, microbatch)
        sums = jax.eval_shape(self.stages.head, self.rest, x, microbatch)[1]

        def slots(number: int) -> jax.Array:
            return self.place.constrain(jnp.zeros((max(number, 1), *x.shape), x.dtype), *BOUNDARY)

        def zeros(w: jax.Array) -> jax.Array:
            return jnp.zeros(w.shape if trains else (), jnp.float32)

        layers, rest = jax.tree.map(zeros, self.layers), jax.tree.map(zeros, self.rest)
        if trains and self.specs is not None:
            layers, rest = self._placed(layers, rest)
        return Carry(
            slots(self.plan.num_x), slots(self.plan.num_dy), slots(1)[0], slots(1)[0],
            self._slots(self._left_by_b, self.plan.num_tape, x, microbatch),
            self._slots(self._left_by_f, self.plan.num_kept, x, microbatch),
            slots(self.plan.num_y) if self.plan.num_y else None,
            layers, rest,
            jax.tree.map(lambda s: jnp.zeros((self.plan.num_microbatches, *s.shape), s.dtype), sums),
            self._nothing_told(x, microbatch),
        )  # fmt: skip

    def _nothing_told(self, x: jax.ShapeDtypeStruct, microbatch: Tree) -> Tree:
        weights = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), self.layers)
        told = jax.eval_shape(self._run, weights, x, microbatch, self.layer_ids[0])[1]
        return jax.tree.map(lambda s: jnp.zeros((self.plan.num_chunks, *s.shape), s.dtype), told)

    def _run(self, weights: Tree, x: jax.Array, microbatch: Batch, ids: jax.Array) -> tuple[Tree, Tree]:
        """((output, the layers' own loss or None), what they tell) of a piece."""
        found = self.stages.layers(weights, x, microbatch, ids)
        return (found[:2], found[2]) if self.stages.told else ((found, None), None)

    def _placed(self, layers: Tree, rest: Tree) -> tuple[Tree, Tree]:
        """Sums of gradients where the layout has gradients. The layers' dim is this stage's own: no axis cuts it."""
        of_layers = map_specs(
            lambda spec, g: replace(spec, shape=g.shape, dims=("slot", "slot", *spec.dims[1:])),
            self.specs["layers"], layers,
        )  # fmt: skip
        return self.place.constrain_tree("grads", layers, of_layers), self._placed_rest(rest)

    def _placed_rest(self, rest: Tree) -> Tree:
        if self.specs is None:
            return rest
        return self.place.constrain_tree("grads", rest, {name: self.specs[name] for name in rest})

    @property
    def one_by_one(self) -> bool:
        """Whether the ops of a tick have to wait for each other, though nothing that one makes is read by the next.

        A CPU device runs independent loops and branches at the same time, and a collective finds its partners by the
        kind and the group alone: that of one op could meet that of another. (GPUs launch in the program's order.)
        """
        return self.place.platform == "cpu"

    def has_done(self, carry: Carry, at: Batch) -> jax.Array:
        """True, which a device knows when all that has made the carry so far has ended there."""
        slots = self.place.spec_here("activations", BOUNDARY, carry.dy_slots.shape)
        one = PartitionSpec(*slots[1:])
        read = on_shards(
            self.place, lambda *xs: sum(x.ravel()[0] for x in xs), (slots, one, one), PartitionSpec()
        )(carry.dy_slots, carry.arrived, carry.answer)  # fmt: skip
        return (at["stage"] >= 0) | (read > 0)  # no stage is below 0, but the compiler does not know that

    def receive(self, carry: Carry, at: Batch, x: bool, dy: bool) -> Carry:
        """Store what was sent in the last tick, where inputs (x) or gradients (dy) may arrive in these ticks.

        The gradient's permute runs beside this tick's forward pass.
        """
        if x:
            carry = carry._replace(x_slots=put(carry.x_slots, at["x_arrival"], carry.arrived))
        if dy:
            answer = self._shift(carry.answer, -1)
            carry = carry._replace(dy_slots=put(carry.dy_slots, at["dy_arrival"], answer))
        return carry

    def forward(self, carry: Carry, at: Batch) -> Carry:
        """F: run a piece and send its output on; the permute runs beside this tick's backward pass."""
        piece = self._piece(at, "f")
        weights, x = self._weights(piece), self._input(carry, at, piece, "f_x")
        if carry.y_slots is not None:
            with jax.named_scope(KEEPING):
                (y, _), transpose, told = self._transposed(weights, x, piece.microbatch, piece.ids)
            _, kept = take_apart(transpose, weights)
            carry = carry._replace(
                kept=[put(slots, at["f_kept"], left) for slots, left in zip(carry.kept, kept, strict=True)],
                y_slots=put(carry.y_slots, at["f_y"], y), told=self._heard(carry, piece, told),
            )  # fmt: skip
            return carry._replace(arrived=self._shift(y, 1))
        (y, _), told = self._run(weights, x, piece.microbatch, piece.ids)
        if not (self.plan.b_microbatch != IDLE).any():  # forward alone: the loss is made here
            sums = jax.lax.cond(
                piece.last & piece.busy,
                lambda: self.stages.head(self.rest, y, piece.microbatch)[1],
                lambda: jax.tree.map(lambda s: jnp.zeros(s.shape[1:], s.dtype), carry.sums),
            )
            carry = carry._replace(
                sums=add_at(carry.sums, piece.microbatch_id, sums), told=self._heard(carry, piece, told)
            )
        return carry._replace(arrived=self._shift(y, 1))

    def _left(self, carry: Carry, at: Batch, piece: "Piece") -> tuple[Carry, jax.Array, Callable]:
        """(the carry, the output of a piece, its backward pass), as F has left them or by running it again."""
        weights = self._weights(piece)
        if carry.y_slots is not None:
            kept = [take(slots, at["b_kept"]) for slots in carry.kept]
            return carry, take(carry.y_slots, at["b_y"]), put_together(self.forms[0], weights, kept)
        x = self._input(carry, at, piece, "b_x")
        (y, _), transpose, told = self._transposed(weights, x, piece.microbatch, piece.ids)
        return carry._replace(told=self._heard(carry, piece, told)), y, transpose

    def backward(self, carry: Carry, at: Batch) -> Carry:
        """B: take the gradient of a piece's output from the loss or from the stage behind, pass it back through what F
        has left, and add up the gradients of weights; the gradient of the input is sent in the next tick."""
        piece = self._piece(at, "b")
        carry, y, transpose = self._left(carry, at, piece)

        def from_loss(so_far: tuple[Tree, jax.Array, Tree]) -> tuple[Tree, jax.Array, Tree]:
            (grads, dy), sums = jax.grad(
                lambda rest, y: self.stages.head(rest, y, piece.microbatch), argnums=(0, 1), has_aux=True
            )(self.rest, y)
            return self._placed_rest(add(so_far[0], grads)), self._boundary(dy), sums

        from_behind = self._boundary(masked(take(carry.dy_slots, at["b_dy"]), piece.busy))
        no_sums = jax.tree.map(lambda s: jnp.zeros(s.shape[1:], s.dtype), carry.sums)
        rest, dy_BTD, sums = at_most_once(piece.last & piece.busy, from_loss, (carry.rest, from_behind, no_sums))
        dy = (dy_BTD, piece.busy.astype(jnp.float32) if self.stages.told else None)
        if self.plan.num_tape:
            (dx,), tape = self._halves(transpose, dy).now(*jax.tree.leaves((transpose, dy)))
            carry = carry._replace(tape=jax.tree.map(lambda t, v: put(t, at["b_tape"], v), carry.tape, tape))
        else:
            weight_grads, dx = transpose(dy)
            carry = carry._replace(layers=add_at(carry.layers, piece.chunk, weight_grads))

        def into_table(rest: Tree) -> Tree:
            _, transpose = jax.vjp(lambda rest: self.stages.embed(rest, piece.microbatch), self.rest)
            return self._placed_rest(add(rest, transpose(dx)[0]))

        rest = at_most_once(piece.first & piece.busy, into_table, rest)
        return carry._replace(answer=dx, rest=rest, sums=add_at(carry.sums, piece.microbatch_id, sums))

    def weight(self, carry: Carry, at: Batch) -> Carry:
        """W: the weight gradients of a piece, from what its B has left."""
        piece = self._piece(at, "w")
        grads = self.halves[0].later(jax.tree.map(lambda t: take(t, at["w_tape"]), carry.tape))
        tree = jax.tree.unflatten(jax.tree.structure(self.layers), masked(grads, piece.busy))
        return carry._replace(layers=add_at(carry.layers, piece.chunk, tree))

    def _slots(self, left: Callable[..., Tree], number: int, x: jax.ShapeDtypeStruct, microbatch: Tree) -> Tree:
        """Empty slots for what an op leaves to a later one, whose form the op has to say."""
        if not number:
            return []
        weights = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape[1:], w.dtype), self.layers)
        forms = jax.eval_shape(left, weights, x, microbatch, self.layer_ids[0])
        return jax.tree.map(lambda form: jnp.zeros((number, *form.shape), form.dtype), forms)

    def _left_by_f(self, weights: Tree, *given: Any) -> list[jax.Array]:
        """What F leaves for B."""
        form, kept = take_apart(self._transposed(weights, *given)[1], weights)
        self.forms[:] = [form]
        return kept

    def _left_by_b(self, *given: Any) -> Tree:
        """What B leaves for W."""
        y, transpose, _ = self._transposed(*given)
        return self._halves(transpose, y).now(*jax.tree.leaves((transpose, y)))[1]

    def _transposed(self, weights: Tree, x: jax.Array, microbatch: Batch, ids: jax.Array) -> tuple[Tree, Any, Tree]:
        """((output, the layers' own loss or None), the backward pass, what they tell) of a piece."""
        return jax.vjp(lambda w, x: self._run(w, x, microbatch, ids), weights, x, has_aux=True)

    def _heard(self, carry: Carry, piece: "Piece", told: Tree) -> Tree:
        return add_at(carry.told, piece.chunk, masked(told, piece.busy))

    def _halves(self, transpose: Callable, dy: Tree) -> Cut:
        """The backward pass of a piece, cut into B and W; W (`weight`) runs by the same cut. dy: of all its outputs."""
        arguments, form = jax.tree.flatten((transpose, dy))

        def whole(*arguments: jax.Array) -> list[jax.Array]:
            transpose, dy = jax.tree.unflatten(form, arguments)
            weight_grads, dx = transpose(dy)
            return [*jax.tree.leaves(weight_grads), dx]

        num_weights = len(jax.tree.leaves(self.layers))
        self.halves[:] = [cut(whole, arguments, [False] * num_weights + [True])]
        return self.halves[0]

    def _piece(self, at: Batch, op: str) -> "Piece":
        index, chunk = jnp.maximum(at[f"{op}_microbatch"], 0), jnp.maximum(at[f"{op}_chunk"], 0)
        microbatch = {name: take(x, index) for name, x in self.microbatches.items()}
        number = chunk * self.plan.num_stages + at["stage"]
        return Piece(
            index, chunk, microbatch, take(self.layer_ids, chunk), at[f"{op}_microbatch"] != IDLE, number == 0,
            number == self.plan.num_stages * self.plan.num_chunks - 1,
        )  # fmt: skip

    def _weights(self, piece: "Piece") -> Tree:
        return jax.tree.map(lambda w: w[0] if w.shape[0] == 1 else take(w, piece.chunk), self.layers)

    def _input(self, carry: Carry, at: Batch, piece: "Piece", slot: str) -> jax.Array:
        """A piece's input: the embedded tokens for the first, what has arrived for the others."""
        return jax.lax.cond(
            piece.first,
            lambda: self._boundary(self.stages.embed(self.rest, piece.microbatch)),
            lambda: self._boundary(take(carry.x_slots, at[slot])),
        )

    def _boundary(self, x: jax.Array) -> jax.Array:
        """An activation between pieces, placed. (The compiler wants both ways of a branch to end alike.)"""
        return self.place.constrain(x, *BOUNDARY[1:])

    def _shift(self, x: jax.Array, by: int) -> jax.Array:
        """Around the ring of stages: what the stage `by` places before this one has sent."""
        p = self.plan.num_stages
        return jax.lax.ppermute(x, self.axis, [(s, (s + by) % p) for s in range(p)])


@dataclass(frozen=True)
class Piece:
    """What a stage works on in a tick; `busy` is False where it works for nothing."""

    microbatch_id: jax.Array
    chunk: jax.Array
    microbatch: Batch
    ids: jax.Array
    busy: jax.Array
    first: jax.Array
    last: jax.Array
