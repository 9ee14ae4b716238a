"""`Split`: how a layout shares a step out, as the numbers that time depends on. Cheap: a search makes thousands.

`split_of` reads one off a placement, with the roles that its rules give the axes; nothing is known about their names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.links import ALONE, Group, group_of
from meshtrain.cost.muon import Dealt, dealt
from meshtrain.layout import Placement
from meshtrain.layout.exchange import exchange_axes
from meshtrain.layout.pipeline import Pipeline
from meshtrain.layout.roles import zero_stage
from meshtrain.model import ModelConfig
from meshtrain.parallel.attention.balance import balance
from meshtrain.step import OptimizerConfig

# What is computed again in the backward pass: a layout's words, and "attention" (scores and their products alone:
# Megatron's selective recomputation, which matters to programs that write scores to memory).
REDONE = ("none", "attention", "dots", "names", "full")

ADAMW = OptimizerConfig()


@dataclass(frozen=True)
class Split:
    """cuts: dim of a weight in use -> into how many parts. Groups of devices that exchange: tensor (heads, mlp), stage,
    ring (keys go round it, or are gathered), swap (heads are swapped for length), experts (and `hops`, over which their
    tokens travel one after the other), reduce (gradients are summed over it: batch and length), zero (weights are
    stored in parts over it, from `zero_stage` on); copies and expert_zero are the same for experts, None for alike.

    sequence: whether the stream is cut over the tensor group. batch_parts, length_parts: into how many the batch and a
    row are cut. microbatch: rows on a device at a time. num_microbatches: of a step, one after the other. pieces: how
    many layers each piece of the pipeline has, `chunks` of them on each stage. gather: how often a pipeline makes
    stored parts whole. attention, schedule, keep, remat: the layout's words; schedule None: no pipeline. imbalance:
    attention of the shard of the length that has most of it, over the mean. routed: rows that a device's experts
    compute, for each pair of a token of the device and an expert: less where devices with the same tokens have experts
    of their own, more with a capacity above an even load. dense: the same, where a product without a capacity is one of
    all rows of its buffer with the matrix of each expert of the device (`Software.groups_rows`). whole: the matrices
    that Muon makes orthogonal on a device.
    """

    microbatch: int
    num_microbatches: int
    pieces: tuple[int, ...]
    cuts: Mapping[str, int] = field(default_factory=dict)
    tensor: Group = ALONE
    stage: Group = ALONE
    ring: Group = ALONE
    swap: Group = ALONE
    experts: Group = ALONE
    hops: tuple[Group, ...] = ()
    reduce: Group = ALONE
    zero: Group = ALONE
    copies: Group | None = None
    expert_zero: Group | None = None
    zero_stage: int = 0
    sequence: bool = False
    batch_parts: int = 1
    length_parts: int = 1
    num_devices: int = 1
    schedule: str | None = None
    gather: str = "pass"
    keep: str = "input"
    remat: str = "none"
    attention: str = "local"
    imbalance: float = 1.0
    routed: float = 1.0
    dense: float = 1.0
    whole: tuple[Dealt, ...] = ()

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline; 1 without one."""
        return self.stage.size

    @property
    def chunks(self) -> int:
        """Pieces of each stage."""
        return len(self.pieces) // self.stage.size

    @property
    def global_batch(self) -> int:
        """Rows of a step."""
        return self.microbatch * self.num_microbatches * self.batch_parts


def split_of(
    place: Placement, model: ModelConfig, global_batch: int, length: int, cluster: Cluster,
    optimizer: OptimizerConfig = ADAMW,
) -> Split:  # fmt: skip
    """What a placement's rules say, for a step of rows of `length`. InputError where the batch does not divide."""
    sizes, layout = place.axis_sizes, place.layout
    pipeline = layout.pipeline
    stage_axes = place.axes("layers", "use") if pipeline else ()
    tensor_axes = {axis for dim in ("heads", "mlp") for axis in place.axes(dim, "use")}
    exchange = exchange_axes(place)
    reduce_axes = {*place.axes("batch"), *place.axes("length")}
    stages = {axis: zero_stage(place, axis) for axis in sizes if sizes[axis] > 1}
    zero_axes = [axis for axis, stage in stages.items() if stage and axis not in stage_axes]

    def group(axes: object) -> Group:
        return group_of(sizes, axes, cluster)  # type: ignore[arg-type]

    dims = ("heads", "kv_heads", "mlp", "expert_mlp", "vocab", "expert")
    cuts = {dim: place.num_shards(dim, "use") for dim in dims if dim in place.rules("use").rows}
    num_stages = place.size(stage_axes)
    expert_axes = place.axes("expert", "use")
    exchanged = [axis for axis in expert_axes if axis in reduce_axes]
    shared = place.size(tuple(axis for axis in expert_axes if axis not in reduce_axes))
    capacity = layout.experts.capacity_factor
    routed = (capacity or 1.0) / shared
    return Split(
        microbatch=place.check_batch(global_batch),
        num_microbatches=place.num_microbatches,
        pieces=_pieces(model, pipeline, num_stages) if pipeline else (model.num_layers,),
        cuts=cuts,
        tensor=group(tensor_axes),
        stage=group(stage_axes),
        ring=group(exchange.ring),
        swap=group(exchange.swap),
        experts=group(expert_axes),
        hops=tuple(group([axis]) for axis in sizes if axis in exchanged),
        reduce=group(reduce_axes),
        zero=group(zero_axes),
        copies=group(reduce_axes - set(expert_axes)) if expert_axes else None,
        expert_zero=group([axis for axis in zero_axes if axis not in expert_axes]) if expert_axes else None,
        zero_stage=max((stages[axis] for axis in zero_axes), default=0),
        sequence=bool(tensor_axes & set(place.axes("stream"))),
        batch_parts=place.num_shards("batch"),
        length_parts=place.num_shards("length"),
        num_devices=place.num_devices,
        schedule=pipeline.schedule if pipeline else None,
        gather=pipeline.gather if pipeline else "pass",
        keep=pipeline.keep if pipeline else "input",
        remat=layout.remat,
        attention=layout.attention,
        imbalance=_imbalance(place, model, length),
        routed=routed,
        dense=dense_rows(place, model) if model.moe and not capacity else routed,
        whole=dealt(model, optimizer, place, cluster),
    )


def _pieces(model: ModelConfig, pipeline: Pipeline, num_stages: int) -> tuple[int, ...]:
    """Layers that run in each piece: of a model with experts the first dense ones in the first piece, and those between
    with the layer behind them."""
    first, *others = pipeline.pieces(model.num_stacked, num_stages)
    if model.moe is None:
        return (first, *others)
    return (model.moe.first_dense + first * model.moe.every, *(num * model.moe.every for num in others))


def dense_rows(place: Placement, model: ModelConfig) -> float:
    """Without a capacity: rows of the buffer (dropless.py) times experts of a device, for each pair of one of its
    tokens and an expert."""
    assert model.moe is not None
    tokens = {*place.axes("batch"), *place.axes("length")}
    exchanged = place.size(tuple(axis for axis in place.axes("expert", "use") if axis in tokens))
    local = model.moe.num_experts // place.num_shards("expert", "use")
    rows = exchanged * min(model.moe.top_k, local) if exchanged > 1 else model.moe.top_k
    return local * rows / model.moe.top_k


def _imbalance(place: Placement, model: ModelConfig, length: int) -> float:
    """Attention of the busiest shard of the length over the mean, all layers together."""
    busiest, mean = 0.0, 0.0
    for window in model.windows:
        layers = sum(model.layer_window(layer) == window for layer in range(model.num_layers))
        blocks = balance(place, length, window) or [1]
        busiest += layers * max(blocks)
        mean += layers * sum(blocks) / len(blocks)
    return busiest / mean
