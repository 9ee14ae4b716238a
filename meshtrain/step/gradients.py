"""The gradient of a step's mean loss: summed over the microbatches of accumulation, whoever computes that of one.

Over axes that cut the batch and no dense weight (DDP, ZeRO-1, experts) the parts of the devices are joined once a
step; where a layout has weights or gradients in parts (ZeRO-2, ZeRO-3), once for each microbatch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from meshtrain.layout import Placement, Tree
from meshtrain.layout.rules import Axes
from meshtrain.model import ModelConfig
from meshtrain.model.decoder import all_sums
from meshtrain.model.losses import RouterSums, zero_sums
from meshtrain.parallel import LossSums
from meshtrain.parallel.rows import on_rows, own_axes, own_rows, own_specs
from meshtrain.step.microbatches import Batch, microbatches
from meshtrain.step.pipeline import PipelineStep, total
from meshtrain.step.routing import needs_load, num_routed

Summed = tuple[LossSums, RouterSums | None, Tree]


class Whole(NamedTuple):
    """What each microbatch has to know of the step's whole batch, and the key of its dropout.

    num_tokens, num_routed: float32, at least 1; load: pairs by [MoE layer, expert], where the routers' loss needs them.
    """

    num_tokens: jax.Array
    num_routed: jax.Array
    load: jax.Array | None
    dropout_key: jax.Array | None


def joined_once(place: Placement) -> Axes:
    """The axes over which gradients are joined once for all microbatches of accumulation, not once for each."""
    if place.layout.accumulate == 1 or place.layout.pipeline is not None:
        return ()  # (a pipeline joins those of its own microbatches)
    return own_axes(place, ("params", "grads", "activations"))


def summed_rows(place: Placement) -> str:
    """The class in whose rows the sums lie. Those that are joined once have been sums over all that they can be."""
    pipeline = place.layout.pipeline
    return "optimizer" if (pipeline and pipeline.gather == "step") or joined_once(place) else place.gradient_rows


def summed_gradients(
    model: ModelConfig, place: Placement, specs: Tree, params: Tree, batch: Batch, z_loss: float, key: jax.Array | None
) -> tuple[Summed, jax.Array]:
    """((sums of the loss and of the routers, gradient of their means) over all microbatches, tokens that were routed).

    specs: ArraySpec of the weights in physical shapes; z_loss: weight of the squared log-sum-exp; key: of dropout.
    """
    axes = joined_once(place)
    load = _load(model, place, specs, params, batch, z_loss, key) if needs_load(model.moe, place) else None
    num_tokens = jnp.maximum((batch["labels"] >= 0).sum(), 1).astype(jnp.float32)
    whole = Whole(num_tokens, num_routed(batch, place), load, key)
    one = _OfOne(model, own_rows(place, axes), specs, z_loss)
    if place.layout.accumulate == 1:
        return one(params, batch, whole), whole.num_routed

    def all_of_them(given: tuple[Tree, Whole], batch_MB: Batch) -> Summed:
        params, whole = given

        def add(carry: Summed, microbatch: Batch) -> tuple[Summed, None]:
            found = one(params, microbatch, whole)
            summed = jax.tree.map(lambda total, g: total + g.astype(jnp.float32), carry, found)
            return one.placed(summed), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        no_loss = LossSums(*(jnp.zeros((), jnp.float32) for _ in LossSums._fields))
        return jax.lax.scan(add, one.placed((no_loss, zero_sums(model), zeros)), batch_MB)[0]

    parts = microbatches(batch, place.layout.accumulate)
    of_weights = own_specs(place, axes, specs)
    summed = on_rows(place, axes, all_of_them, (of_weights, P()), (P(), P(), of_weights))
    return summed((params, whole), parts), whole.num_routed


class _OfOne(NamedTuple):
    """The sums and the gradient of one microbatch, by the whole model or by the stages of a pipeline."""

    model: ModelConfig
    place: Placement
    specs: Tree
    z_loss: float

    def __call__(self, params: Tree, microbatch: Batch, whole: Whole) -> Summed:
        options: dict[str, Any] = dict(z_loss=self.z_loss, dropout_key=whole.dropout_key, load=whole.load)
        if self.place.layout.pipeline is not None:
            stages = PipelineStep(self.model, self.place, self.specs)
            grads, sums, routers = stages.gradient(
                params, microbatch, whole.num_tokens, num_routed=whole.num_routed, **options
            )
            return total(sums), routers, grads

        def mean_loss(params: Tree) -> tuple[jax.Array, tuple[LossSums, RouterSums | None]]:
            sums, routers = all_sums(params, self.model, microbatch, self.place, **options)
            loss = sums.loss_sum / whole.num_tokens
            return loss if routers is None else loss + routers.loss.sum() / whole.num_routed, (sums, routers)

        grads, (sums, routers) = jax.grad(mean_loss, has_aux=True)(params)
        return sums, routers, grads

    def placed(self, summed: Summed) -> Summed:
        """Gradients where they are summed up."""
        return summed[0], summed[1], self.place.constrain_tree(summed_rows(self.place), summed[2], self.specs)


def _load(
    model: ModelConfig, place: Placement, specs: Tree, params: Tree, batch: Batch, z_loss: float, key: jax.Array | None
) -> jax.Array:
    """Pairs of the whole batch by [MoE layer, expert], from a forward pass over all microbatches."""
    stages = PipelineStep(model, place, specs) if place.layout.pipeline else None
    options: dict[str, Any] = dict(z_loss=z_loss, dropout_key=key)

    def add(load: jax.Array, microbatch: Batch) -> tuple[jax.Array, None]:
        if stages is not None:
            routers = stages.sums(params, microbatch, **options)[1]
        else:
            routers = all_sums(params, model, microbatch, place, **options)[1]
        assert routers is not None
        return load + routers.load, None

    none = zero_sums(model)
    assert none is not None
    return jax.lax.scan(add, none.load, microbatches(batch, place.layout.accumulate))[0]
