"""A model, a batch and meshes small enough for a laptop that still exercise everything that the real ones do.

Every dim keeps its role: what is cut stays cut by every axis of every layout, heads that are shared stay shared, heads
that are fewer than their axis stay fewer, windows stay shorter than the rows. The vocabulary becomes prime, so that it
needs padding wherever it is cut.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from meshtrain.errors import InputError
from meshtrain.layout import Layout, Placement, abstract_mesh
from meshtrain.layout.inventory import KINDS
from meshtrain.layout.mesh import FILL, MeshShape
from meshtrain.layout.words import listing
from meshtrain.model import LatentConfig, ModelConfig, MoEConfig

LENGTH, EMBED, MLP, HEAD_DIM, RANK, VOCAB = 32, 32, 48, 8, 12, 97
MOST_ACCUMULATED = 4  # microbatches that are summed
EXPERTS, MOST_CHOSEN = 8, 3
ROOM = 1e6  # a factor on an even load that no load reaches
MOST_RATIO = 2  # query heads that share one pair of key and value heads


@dataclass(frozen=True)
class Shrunk:
    """The small model, its rows and batch, and in words what became of which size."""

    model: ModelConfig
    length: int
    global_batch: int
    changes: tuple[str, ...]


def least_devices(sizes: Iterable[object]) -> int:
    """How many devices a mesh needs for every axis of it to be larger than 1 (but those declared as 1)."""
    return int(2 ** sum(size != 1 for size in sizes))


def shrink_mesh(shape: MeshShape, num_devices: int) -> dict[str, int]:
    """Axis sizes on at most `num_devices` devices at which every axis larger than 1 is still larger than 1.

    Sizes as declared where they fit; else 2 each, and then twice as much as long as declared sizes and devices allow,
    the axis that takes what is left first.
    """
    declared = math.prod(shape.sizes.values())
    if 1 <= declared <= num_devices:
        return dict(shape.sizes)
    with contextlib.suppress(InputError):
        sizes = shape.resolve(num_devices)
        if num_devices == 1 or all(size > 1 for axis, size in sizes.items() if shape.sizes[axis] != 1):
            return sizes  # of one device a proof still tells whether it computes what the CPU does
    sizes = {axis: 1 if size == 1 else 2 for axis, size in shape.sizes.items()}
    least, cut = least_devices(shape.sizes.values()), sum(size > 1 for size in sizes.values())
    if least > num_devices:
        raise InputError(
            f"--devices: the mesh {' x '.join(shape.sizes)} has {'1 axis' if cut == 1 else f'{cut} axes'} larger"
            f" than 1, which take{'s' if cut == 1 else ''} at least {least} devices, not {num_devices}."
            f" --devices {least} would work."
        )
    for axis in sorted(sizes, key=lambda axis: shape.sizes[axis] != FILL):
        most = num_devices if shape.sizes[axis] == FILL else shape.sizes[axis]
        while 1 < 2 * sizes[axis] <= most and 2 * math.prod(sizes.values()) <= num_devices:
            sizes[axis] *= 2
    return sizes


def shrink(model: ModelConfig, layouts: Sequence[Layout], meshes: Sequence[dict[str, int]]) -> Shrunk:
    """One small model, row length and batch for all layouts on their (small) meshes."""
    places = [Placement(layout, abstract_mesh(sizes)) for layout, sizes in zip(layouts, meshes, strict=True)]

    def unit(dim: str) -> int:
        return math.lcm(*(place.num_shards(dim, kind) for place in places for kind in ("use", *KINDS)))

    kv_heads = _kv_heads(model, places)
    ratio = min(model.num_heads // model.num_kv_heads, MOST_RATIO)
    length = _multiple(LENGTH, 2 * math.lcm(unit("length"), unit("stream")))
    pieces = math.lcm(*(_pieces(place) for place in places), unit("layers"))
    uneven = model.num_stacked % pieces > 0 and any(place.layout.pipeline for place in places)
    num_layers = _multiple(max(min(2, model.num_stacked), pieces) + uneven, len(model.window_layers))
    moe = None if model.moe is None else _moe(model.moe, unit)
    head_dim = _multiple(HEAD_DIM, 2 * unit("head_dim"))
    latent = None if model.latent is None else _latent(model.latent, head_dim, unit)
    num_heads = _multiple(kv_heads * ratio, math.lcm(kv_heads, unit("heads")))
    small = dataclasses.replace(
        model,
        num_layers=num_layers if moe is None else moe.first_dense + moe.every * num_layers,
        embed=_multiple(EMBED, math.lcm(unit("embed"), unit("expert_embed"))),
        num_heads=num_heads,
        num_kv_heads=kv_heads if latent is None else num_heads,
        head_dim=head_dim if latent is None else latent.nope_dim + latent.rope_dim,
        latent=latent,
        mlp=_multiple(MLP, unit("mlp")),
        moe=moe,
        vocab=VOCAB,
        max_length=_multiple(length, unit("position")),
        window=None if model.window is None else min(model.window, length // 4),
        query_scale=None if model.query_scale is None else 1.0,
        embed_scale=1.0 if model.embed_scale == 1 else 2.0,
        init_std=0.2,  # of the order of 1 / sqrt(embed), so that scores and gates are not all alike
    )
    batch = _multiple(4, math.lcm(*(place.num_shards("batch") * place.num_microbatches for place in places)))
    return Shrunk(small, length, batch, _changes(model, small))


def _latent(latent: LatentConfig, head_dim: int, unit: Callable[[str], int]) -> LatentConfig:
    """Small latents, of another width each; a head's value stays narrower than its key."""
    return LatentConfig(
        kv_rank=_multiple(RANK, math.lcm(unit("kv_rank"), unit("latent"))),
        nope_dim=head_dim,
        rope_dim=_multiple(head_dim // 2, 2 * math.lcm(unit("head_dim"), unit("rope_dim"))),
        value_dim=head_dim,
        query_rank=None
        if latent.query_rank is None
        else _multiple(2 * RANK, math.lcm(unit("query_rank"), unit("latent"))),
    )


def _moe(moe: MoEConfig, unit: Callable[[str], int]) -> MoEConfig:
    """Few small experts, which every axis of theirs divides; groups and dense layers, if there are any."""
    groups = min(moe.num_groups, 4)
    top_groups = min(moe.top_groups, max(groups // 2, 1)) if moe.top_groups < moe.num_groups else groups
    num_experts = _multiple(EXPERTS, math.lcm(unit("expert"), 2 * groups, unit("router")))
    return dataclasses.replace(
        moe,
        num_experts=num_experts,
        top_k=min(moe.top_k, MOST_CHOSEN, top_groups * (num_experts // groups)),
        mlp=_multiple(MLP // 2, math.lcm(unit("expert_mlp"), unit("mlp"))),
        num_groups=groups,
        top_groups=top_groups,
        num_shared=min(moe.num_shared, 1),
        first_dense=min(moe.first_dense, 1),
    )


def shrink_layout(layout: Layout, sizes: dict[str, int]) -> Layout:
    """The layout with few microbatches; in a pipeline at most two pieces per stage, its layers dealt out evenly. A
    capacity of experts is large enough to drop nothing, since the reference drops nothing."""
    layout = dataclasses.replace(layout, accumulate=min(layout.accumulate, MOST_ACCUMULATED))
    if layout.experts.capacity_factor is not None:
        roomy = dataclasses.replace(layout.experts, capacity_factor=ROOM)
        layout = dataclasses.replace(layout, experts=roomy)
    if layout.pipeline is None:
        return layout
    stages = math.prod(sizes[axis] for axis in layout.rules.axes("layers"))
    small = dataclasses.replace(
        layout.pipeline,
        microbatches=min(layout.pipeline.microbatches, 2 * stages),
        repeats=min(layout.pipeline.repeats, 2),
        layers=None,
    )
    return dataclasses.replace(layout, pipeline=small)


def _pieces(place: Placement) -> int:
    """Into how many pieces a pipeline cuts the layers."""
    return place.num_stages * place.layout.pipeline.repeats if place.layout.pipeline else 1


def _kv_heads(model: ModelConfig, places: Sequence[Placement]) -> int:
    """As few as keep each layout's relation of heads to axes: cut by them, or fewer and replicated."""

    def keeps(place: Placement) -> Callable[[int], bool]:
        small = place.num_shards("kv_heads")
        declared = math.prod(
            place.layout.mesh.sizes[axis] if place.layout.mesh.sizes[axis] != FILL else place.axis_sizes[axis]
            for axis in place.rules("activations").axes("kv_heads")
        )
        fewer = model.num_kv_heads < declared
        return lambda heads: heads < small and small % heads == 0 if fewer else heads % small == 0

    wanted = [keeps(place) for place in places]
    shards = [place.num_shards("kv_heads") for place in places]
    least = min(2, model.num_kv_heads)
    sizes = range(1, math.lcm(*shards) * 2 + 1)
    fitting = [n for n in sizes if all(wish(n) for wish in wanted)] or [
        n for n in sizes if all(n % s == 0 or s % n == 0 for s in shards)
    ]
    return min(fitting, key=lambda n: (n < least, n))


def _multiple(least: int, unit: int) -> int:
    """The smallest multiple of `unit` that is at least `least`."""
    return -(-least // unit) * unit


def _changes(model: Any, small: Any) -> tuple[str, ...]:
    """`embed 16,384 -> 32` for each size that changed, of sections too: `latent.kv_rank 512 -> 12`."""
    changed = []
    for field in dataclasses.fields(model):
        old, new = getattr(model, field.name), getattr(small, field.name)
        if dataclasses.is_dataclass(old) and dataclasses.is_dataclass(new):
            changed += [f"{field.name}.{change}" for change in _changes(old, new)]
        elif old != new:
            before, after = (f"{value:,}" if isinstance(value, int) else str(value) for value in (old, new))
            changed.append(f"{field.name} {before} -> {after}")
    return tuple(changed)


def features(model: ModelConfig) -> str:
    """What the small model still has of the large one, in words."""
    shared = model.num_heads // model.num_kv_heads
    found = [
        f"{model.norm} norm",
        model.activation,
        f"{model.positions} positions" + (f" ({model.rope_scaling.kind} scaling)" if model.rope_scaling else ""),
        "tied embeddings" if model.tied else "untied embeddings",
    ]
    found += [f"{shared} query heads to a key and value head"] if shared > 1 else []
    found += ["a sliding window"] if model.window else []
    found += ["q/k norm"] if model.qk_norm else []
    found += ["latent attention"] if model.latent else []
    found += ["biases"] if model.attention_bias or model.mlp_bias or model.attention_output_bias else []
    found += ["soft-caps"] if model.attention_softcap or model.logit_softcap else []
    found += [f"{model.moe.num_experts} experts, of which a token uses {model.moe.top_k}"] if model.moe else []
    found += [f"dropout {model.dropout}"] if model.dropout else []
    return listing(found)
