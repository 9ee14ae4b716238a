"""Seconds that one device needs for a layer's forward pass, its backward pass and what is computed again, by cause.

Products against the peak, everything else against memory, exchanges of the layer against their links; a host that has
to start each piece of work makes the device wait. Of one microbatch and an average layer.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.links import collective_seconds
from meshtrain.cost.products import Product, layer_products, output_product, product_seconds
from meshtrain.cost.software import Software
from meshtrain.cost.split import Split
from meshtrain.model import ModelConfig
from meshtrain.model.flops import attention_flops_per_token

Parts = dict[str, float]  # cause -> seconds
TENSOR = "tensor_parallel"  # the cause: exchanges of activations within the tensor group
COMPUTE = ("products", "attention", "memory", "recompute")
UPDATE = ("update", "muon")
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclass(frozen=True)
class Passes:
    """Seconds by cause of a forward pass, of the gradient of the input, of the gradient of the weights.

    hidden: exchanges that go on behind the computation, by cause; flops: of the hardware; all passes together.
    """

    forward: Parts
    backward: Parts
    weight: Parts
    hidden: Parts = field(default_factory=dict)
    flops: float = 0.0


def total(parts: Parts) -> float:
    """All causes together."""
    return sum(parts.values())


def plus(*terms: tuple[float, Parts]) -> Parts:
    """The sum of these parts, each times its factor."""
    found: Parts = {}
    for factor, parts in terms:
        for cause, seconds in parts.items():
            found[cause] = found.get(cause, 0.0) + factor * seconds
    return found


@dataclass(frozen=True)
class Step:
    """What a layer's time depends on; peak and memory as programs get them."""

    model: ModelConfig
    split: Split
    length: int
    cluster: Cluster
    software: Software
    compute: str

    @property
    def tokens(self) -> float:
        """Positions of a microbatch on one device."""
        return self.split.microbatch * self.length / self.split.length_parts

    @property
    def replays(self) -> bool:
        """Whether a piece's forward pass runs again in its backward pass."""
        return self.software.replays and self.split.schedule is not None and self.split.keep == "input"

    @property
    def itemsize(self) -> int:
        """Bytes of a number that is computed with."""
        return ITEMSIZE[self.compute]

    @property
    def memory(self) -> float:
        """Bytes/s that programs get of the device's memory."""
        return self.cluster.memory_rate.value * self.cluster.share("memory")

    def seconds(self, product: Product, dtype: str = "") -> float:
        """Seconds of one pass through a product, in the dtype that computes if none is named."""
        dtype = dtype or self.compute
        peak = self.cluster.peak_rate(dtype).value * self.cluster.share("matmul")
        return product_seconds(product, peak, self.memory, self.software, ITEMSIZE[dtype])


def layer_passes(step: Step) -> Passes:
    """An average layer's passes."""
    split, software = step.split, step.software
    rows = split.routed if software.groups_rows else split.dense
    products = layer_products(step.model, split.cuts, step.tokens, rows)
    matmul = sum(step.seconds(product) for product in products)
    attention, attention_flops = _attention(step)
    memory = _elementwise_bytes(step) / step.memory
    tensor = _tensor(step)
    exchange, hidden = _context(step, attention)
    experts = _experts(step)
    others = plus((1, tensor), (1, experts), (1, exchange))

    forward = plus((1, {"products": matmul, "attention": attention[0], "memory": memory}), (1, others))
    backward = plus((1, {"products": matmul, "attention": attention[1], "memory": 2 * memory}), (1, others))
    weight: Parts = {"products": matmul}
    redone, redone_flops = _redone(step, products, (attention[0], attention_flops), memory, tensor)
    if split.remat in ("dots", "names", "full"):  # tokens are sent to their experts again; results need not come back
        redone = plus((1, redone), (0.5, experts))
    host = software.host_layer + 2 * (split.tensor.size > 1) * software.host_collective
    _wait(forward, host)
    _wait(backward, host, beside=matmul)
    _wait(redone, host if split.remat == "full" else 0.0)
    flops = sum(product.flops for product in products)
    if step.replays:
        redone = plus((1, redone), (1, {"recompute": matmul + attention[0] + memory}), (1, others))
        redone_flops += flops + attention_flops
    backward = plus((1, backward), (1, redone))
    factor = 1 + software.attention_backward
    return Passes(forward, backward, weight, hidden, 3 * flops + factor * attention_flops + redone_flops)


def output_passes(step: Step) -> Passes:
    """The output layer and the loss, of one microbatch. Forward and backward share what the host needs for them."""
    product = output_product(step.model, step.split.cuts, step.tokens)
    matmul = step.seconds(product)
    logits = step.tokens * product.outer / step.memory
    forward, backward = (bytes_ * logits for bytes_ in step.software.logit_bytes)
    passes = Passes(
        {"products": matmul, "memory": forward}, {"products": matmul, "memory": backward}, {"products": matmul},
        flops=3 * product.flops,
    )  # fmt: skip
    _wait(passes.backward, step.software.host_output, beside=matmul + total(passes.forward))
    return passes


def _wait(parts: Parts, host: float, beside: float = 0.0) -> None:
    """Adds the time for which a device with too little to do waits for its host."""
    wait = host - total(parts) - beside
    if wait > 0:
        parts["host"] = parts.get("host", 0.0) + wait


_attention_flops = lru_cache(maxsize=256)(attention_flops_per_token)


def _attention(step: Step) -> tuple[tuple[float, float], float]:
    """Seconds forward and backward of scores, softmax and weighted values, and the forward pass's FLOPs on a device.

    Of the shard of the length that has most of it: the others wait for it at the next exchange.
    """
    model, software = step.model, step.software
    parts = step.split.cuts.get("heads", 1)
    per_token = _attention_flops(model, step.length) / model.num_layers
    if software.square:  # all scores of a row are computed, then masked: twice what a causal mask leaves
        per_token = 2 * _attention_flops(replace(model, window=None), step.length) / model.num_layers
    flops = per_token * step.tokens / parts * step.split.imbalance
    peak = step.cluster.peak_rate(step.compute).value * software.attention_share
    forward, backward = flops / peak, software.attention_backward * flops / peak
    if software.writes_scores:
        scores = step.tokens * step.length * model.num_heads / parts
        forward += software.score_bytes[0] * scores / step.memory
        backward += software.score_bytes[1] * scores / step.memory
    return (forward, backward), flops


def _elementwise_bytes(step: Step) -> float:
    """Bytes that the rest of a layer's forward pass reads and writes: norms, sums, activation, rotation, transposes.

    Each is one kernel that reads its inputs once and writes its result once; backward they move twice as much.
    """
    model, split = step.model, step.split
    norms = 4 if model.post_norms else 2
    stream = (2 * norms + 3 * 2) * model.embed / (split.tensor.size if split.sequence else 1)
    hidden = (3 if model.gated else 2) * model.mlp / split.cuts.get("mlp", 1)
    if model.moe:
        routed = model.moe.top_k * split.routed
        width = routed * model.moe.mlp / split.cuts.get("expert_mlp", 1)
        width += model.moe.num_shared * model.moe.mlp / split.cuts.get("mlp", 1)
        # Tokens are sorted by their experts, and results back, once more for each hop.
        hidden = (3 if model.gated else 2) * width + 4 * (len(split.hops) + 1) * routed * model.embed
    heads = model.num_heads * model.head_dim / split.cuts.get("heads", 1)
    keys = max(model.num_kv_heads / split.cuts.get("kv_heads", 1), 1) * model.head_dim
    moved = 2 * (heads + keys) if model.positions == "rotary" else 0
    if step.software.writes_scores:  # products of batches of heads need them side by side in memory
        moved += 2 * (heads + 2 * keys) + 2 * heads
    return (stream + hidden + moved) * step.tokens * step.itemsize


def _activation_bytes(step: Step) -> float:
    return step.tokens * step.model.embed * step.itemsize


def _tensor(step: Step) -> Parts:
    """Exchanges of the tensor group in one pass: two sums of the activation, or a gather and a scatter for each."""
    group = step.split.tensor
    if group.size == 1:
        return {}
    kinds = ("all_gather", "reduce_scatter") if step.split.sequence else ("all_reduce",)
    one = sum(collective_seconds(kind, _activation_bytes(step), group, step.cluster) for kind in kinds)
    return {TENSOR: 2 * one}


def _context(step: Step, attention: tuple[float, float]) -> tuple[Parts, Parts]:
    """What keys and values (and heads that are swapped) cost in one pass: (exposed, hidden behind attention)."""
    split, model = step.split, step.model
    exposed, hidden = 0.0, 0.0
    keys = max(model.num_kv_heads / split.cuts.get("kv_heads", 1), 1) * (model.head_dim + model.value_dim)
    local = keys * step.tokens * step.itemsize
    if split.swap.size > 1:
        queries = model.num_heads / split.cuts.get("heads", 1) * (model.head_dim + model.value_dim)
        swapped = (queries + keys) * step.tokens * step.itemsize
        exposed += collective_seconds("all_to_all", swapped, split.swap, step.cluster)
    if split.ring.size > 1:
        if split.attention == "gather":
            exposed += collective_seconds("all_gather", local * split.ring.size, split.ring, step.cluster)
        else:
            one = collective_seconds("permute", local, split.ring, step.cluster) * (split.ring.size - 1)
            exposed += max(0.0, one - attention[0])
            hidden += 2 * min(one, attention[0])  # forward and backward
    return ({"context": exposed} if exposed else {}), ({"context": hidden} if hidden else {})


def _experts(step: Step) -> Parts:
    """Tokens to their experts and back, in one pass."""
    split, moe = step.split, step.model.moe
    if moe is None or split.experts.size == 1:
        return {}
    sent = moe.top_k * _activation_bytes(step) * split.routed
    hops = split.hops or (split.experts,)
    one = sum(collective_seconds("all_to_all", sent, group, step.cluster) for group in hops)
    return {"experts": 2 * one * step.model.num_moe_layers / step.model.num_layers}


def _redone(
    step: Step, products: tuple[Product, ...], attention: tuple[float, float], memory: float, tensor: Parts
) -> tuple[Parts, float]:
    """What the backward pass computes again, and its FLOPs. attention: seconds and FLOPs of its forward pass."""
    remat, everything = step.split.remat, step.software.redoes_all
    # With the stream cut, both gathers again and one scatter (the layer's end is not needed); else one of two sums.
    part = 0.75 if step.split.sequence else 0.5
    if remat == "none":
        return {}, 0.0
    if remat == "attention":
        return {"recompute": attention[0]}, attention[1]
    if remat == "dots":
        return plus((1, {"recompute": memory}), (0.5 if step.split.sequence else 0.0, tensor)), 0.0
    if remat == "names":  # the MLP, and attention's output matrix; not the last product, whose result nobody needs
        again = [p for p in products if p.down == (p.part == "attention")]
    else:
        again = [p for p in products if everything or not (p.down and p.part != "attention")]
    exchanged = plus((1.0 if everything else part, tensor))
    seconds, flops = (attention[0], attention[1]) if remat == "full" else (0.0, 0.0)
    seconds += sum(step.seconds(product) for product in again) + memory
    return plus((1, {"recompute": seconds}), (1, exchanged)), flops + sum(product.flops for product in again)
