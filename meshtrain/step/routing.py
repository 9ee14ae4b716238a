"""What a step does for routers beside the gradient: the load of the whole batch, their biases, their numbers.

A router's losses are means over the counted tokens of the global batch (padding is not counted), like the token loss:
sums over microbatches, divided once.
"""

from typing import Any

import jax
import jax.numpy as jnp

from meshtrain.layout import Placement, Tree
from meshtrain.model import MoEConfig
from meshtrain.model.inputs import counted_tokens
from meshtrain.model.losses import RouterSums
from meshtrain.step.microbatches import Batch


def num_routed(batch: Batch, place: Placement) -> jax.Array:
    """Tokens of the batch that routers count, at least 1; float32."""
    counted = counted_tokens(batch["positions"], batch.get("segments"), place)
    return jnp.maximum(counted.sum(), 1).astype(jnp.float32)


def needs_load(moe: MoEConfig | None, place: Placement) -> bool:
    """Whether a pass over all microbatches has to find the load of the global batch before gradients can be taken:
    where no microbatch is all of it (or, in a pipeline, the rows of a device are not)."""
    in_parts = place.num_microbatches > 1 or place.layout.pipeline is not None
    return moe is not None and moe.balance_loss > 0 and moe.balance_over == "batch" and in_parts


def move_biases(masters: Tree, routers: RouterSums | None, moe: MoEConfig | None, place: Placement) -> Tree:
    """The masters with each router's bias moved by `bias_rate`: down where an expert has more than the mean load of the
    global batch, up where it has less (Wang et al. 2024, arxiv.org/abs/2408.15664). No gradient, no decay."""
    if moe is None or routers is None or not moe.bias:
        return masters
    load_LE = routers.load
    moved = jnp.sign(load_LE.mean(-1, keepdims=True) - load_LE) * moe.bias_rate
    layers = masters["layers"]
    bias = layers["moe"]["router"]["bias"]
    ids = place.layer_ids(load_LE.shape[0])
    if ids is not None:  # from the model's order to that of the devices, whose spare slots stay as they are
        flat = ids.ravel()
        moved = jnp.where((flat >= 0)[:, None], moved[flat], 0)
    router = {**layers["moe"]["router"], "bias": bias + moved}
    return {**masters, "layers": {**layers, "moe": {**layers["moe"], "router": router}}}


def router_metrics(routers: RouterSums | None, tokens: jax.Array, moe: MoEConfig | None) -> dict[str, Any]:
    """balance_loss and router_z_loss, of all layers together, and under "routers" by layer: `load` (share of the pairs
    of each expert), max_over_mean of it, drop_share, entropy in nats, balance and z loss."""
    if routers is None or moe is None:
        return {}
    pairs = jnp.maximum(routers.load.sum(-1), 1)
    by_layer = {
        "load": routers.load / pairs[:, None],
        "max_over_mean": routers.load.max(-1) * moe.num_experts / pairs,
        "drop_share": routers.dropped / pairs,
        "entropy": routers.entropy / tokens,
        "balance_loss": routers.balance / tokens,
        "z_loss": routers.z / tokens,
    }
    return {
        "balance_loss": by_layer["balance_loss"].sum(),
        "router_z_loss": by_layer["z_loss"].sum(),
        "routers": by_layer,
    }
