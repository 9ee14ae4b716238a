"""Seconds for weights and gradients between devices, and for the update: what ZeRO and data parallelism cost a step.

    ZeRO-3      each layer's weights are gathered before use, forward and backward, and its gradients scattered
    ZeRO-1, -2  gradients are scattered, and the weights that compute are gathered, once a step
    none        gradients are summed by all

An exchange beside a layer's computation costs what is longer than that; one with nothing beside it costs all.
"""

from dataclasses import replace

from meshtrain.cost.links import Group, collective_seconds
from meshtrain.cost.passes import Parts, Passes, Step, plus, total
from meshtrain.cost.products import layer_products


def layer_elements(step: Step) -> tuple[float, float]:
    """Elements of an average layer's matrices on a device that uses them: (those of experts, all others)."""
    sizes = {True: 0.0, False: 0.0}
    for product in layer_products(step.model, step.split.cuts, step.tokens):
        sizes[product.routed] += product.inner * product.outer * product.experts * product.share
    return sizes[True], sizes[False]


def table_elements(step: Step) -> float:
    """Elements of embedding and output matrix on a device."""
    model = step.model
    return model.vocab * model.embed * (1 if model.tied else 2) / step.split.cuts.get("vocab", 1)


def layer_by_layer(step: Step, layer: Passes) -> Passes:
    """The layer's passes with the exchange of its own weights and gradients beside them, where it has its own."""
    split = step.split
    if not exchanges_by_layer(step):
        return layer
    experts, dense = layer_elements(step)
    gather = gather_seconds(step, experts, dense) if split.zero_stage == 3 else 0.0
    scatter = reduction_seconds(step, experts, dense)
    forward, backward = total(layer.forward), total(layer.backward) + total(layer.weight)
    exposed = max(0.0, gather - forward), max(0.0, gather + scatter - backward)
    hidden = 2 * gather + scatter - sum(exposed)
    return replace(
        layer,
        forward=plus((1, layer.forward), (1, {"weights": exposed[0]})),
        backward=plus((1, layer.backward), (1, {"weights": exposed[1]})),
        hidden=plus((1, layer.hidden), (1, {"weights": hidden})),
    )


def exchanges_by_layer(step: Step) -> bool:
    """Whether each layer exchanges its weights or gradients in each microbatch, rather than all once a step."""
    split = step.split
    if split.zero.size == 1:
        return False
    if split.schedule:
        return split.zero_stage == 3 and split.gather == "pass"
    return split.zero_stage == 3 or (split.zero_stage == 2 and split.num_microbatches > 1)


def once_a_step(step: Step, layers: int, backward: float) -> tuple[Parts, Parts]:
    """(exposed, hidden) of what is done once: gradients reduced, weights gathered, the update.

    layers: how many the device has. backward: seconds of its last microbatch's backward pass, beside which gradients
    may be reduced.
    """
    split, software = step.split, step.software
    experts, dense = (layers * elements for elements in layer_elements(step))
    tables = table_elements(step)
    parts: Parts = {}
    hidden: Parts = {}
    by_layer = exchanges_by_layer(step)
    times = split.num_microbatches if by_layer else 1  # how often the tables are exchanged
    reduce = times * reduction_seconds(step, 0.0, tables + (0.0 if by_layer else dense))
    reduce += 0.0 if by_layer else reduction_seconds(step, experts, 0.0)
    if software.overlaps_data and split.num_stages == 1 and layers:
        hidden["data"] = min(reduce * (1 - 1 / layers), backward)
    parts["data"] = reduce - hidden.get("data", 0.0)
    if split.zero_stage:
        whole = by_layer and split.zero_stage == 3
        gathered = (0.0, tables) if whole else (experts, tables + dense)
        again = times if split.zero_stage == 3 else 1
        parts["weights"] = gather_seconds(step, *(again * elements for elements in gathered))
    owned = (dense + tables) / (split.zero.size if split.zero_stage else 1)
    owned += experts / (_of_experts(step)[0].size if split.zero_stage else 1)
    parts["update"] = software.update_seconds + owned * software.update_bytes / step.memory
    of_muon, behind = whole_seconds(step)
    return plus((1, parts), (1, of_muon)), plus((1, hidden), (1, behind))


def whole_seconds(step: Step) -> tuple[Parts, Parts]:
    """(exposed, hidden) of Muon: its iterations, in float32, and each weight's two exchanges, of whole matrices and of
    their updates. One of them goes on beside the iterations of another weight, as in H100 programs."""
    found: Parts = {}
    hidden: Parts = {}
    for dealt in step.split.whole:
        products = sum(step.seconds(product, "float32") for product in dealt.products)
        sent = sum(collective_seconds("all_to_all", size, group, step.cluster) for group, size in dealt.exchanges)
        computing = products + dealt.moved_bytes / step.memory
        behind = min(sent, computing)
        found = plus((1, found), (1, {"muon": computing, "matrices": 2 * sent - behind}))
        hidden = plus((1, hidden), (1, {"matrices": behind}))
    return found, hidden


def _of_experts(step: Step) -> tuple[Group, Group]:
    """(over which experts' weights are stored in parts, over which their gradients are summed)."""
    split = step.split
    return split.expert_zero or split.zero, split.copies or split.reduce


def gather_seconds(step: Step, experts: float, others: float) -> float:
    """Seconds to make so many elements whole, of experts and of all others."""
    groups = ((experts, _of_experts(step)[0]), (others, step.split.zero))
    return sum(collective_seconds("all_gather", n * step.itemsize, group, step.cluster) for n, group in groups if n)


def reduction_seconds(step: Step, experts: float, others: float) -> float:
    """Seconds to sum gradients of so many elements, of experts and of all others."""
    zero, reduce = _of_experts(step)
    return _reduction(step, others, step.split.zero, step.split.reduce) + _reduction(step, experts, zero, reduce)


def _reduction(step: Step, elements: float, zero: Group, reduce: Group) -> float:
    """Scattered over ZeRO's group first, then summed by what is left."""
    if not elements:
        return 0.0
    num_bytes = elements * step.software.gradient_bytes
    if not step.split.zero_stage or zero.size == 1:
        return collective_seconds("all_reduce", num_bytes, reduce, step.cluster)
    seconds = collective_seconds("reduce_scatter", num_bytes, zero, step.cluster)
    left = max(reduce.size // zero.size, 1)
    return seconds + collective_seconds("all_reduce", num_bytes / zero.size, Group(left, 1, 1), step.cluster)
