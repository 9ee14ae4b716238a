"""All arrays against all rules, before anything is compiled: what is wrong with a layout, all at once.

The texts of what cannot be placed come from `placement`, which raises the same ones. What is added here needs the
whole view: rules that nothing uses, axes that nothing is cut over, work that is repeated, memory that is wasted.
"""

import math
from dataclasses import replace

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.dims import INHERITED
from meshtrain.layout.exchange import exchange_findings
from meshtrain.layout.finding import ERROR, NOTE, WARNING, Finding, merge
from meshtrain.layout.inventory import KINDS, WEIGHT_KINDS, Inventory, axes_of, local_bytes
from meshtrain.layout.placement import PADDED, REPLICATED, Placement
from meshtrain.layout.rules import row_text
from meshtrain.layout.words import plural, size_text

# An array counts as replicated by accident where this share of its class is cut over an axis and the array, which is
# not, costs this share of the class's bytes per device, and this many bytes.
MOST, MUCH, LARGE = 0.5, 0.01, 2**20


def check(place: Placement, arrays: Inventory, global_batch: int, fast_devices: int | None = None) -> list[Finding]:
    """Every finding on a layout, gravest first. `fast_devices`: how many neighbours share the fast links (a node)."""
    findings = place.batch_problems(global_batch)
    for kind, path, spec in arrays.paths():
        physical = place.physical(spec)
        for finding in place.problems(kind, physical.dims, physical.shape):
            if findings and finding.where == place.rules(kind).source.get("batch"):
                continue  # said in terms of the global batch already
            findings.append(replace(finding, arrays=(*finding.arrays, f"{kind}/{path}")))
    findings += _unused_rules(place, arrays) + exchange_findings(place, arrays) + _tokens_on_stages(place)
    if not findings or all(finding.severity != ERROR for finding in findings):
        used = {kind: [(path, spec, axes_of(place, kind, spec)) for path, spec in arrays.named(kind)] for kind in KINDS}
        findings += _idle_axes(place, used)
        findings += _replicated_by_accident(place, used)
        findings += _fewer_heads(place, arrays)
        findings += _padding(place, arrays)
        findings += _slow_links(place, arrays, fast_devices)
    return merge(findings)


Used = dict[str, list[tuple[str, ArraySpec, tuple[tuple[str, ...], ...]]]]


def _unused_rules(place: Placement, arrays: Inventory) -> list[Finding]:
    """Rows that say nothing about any array of this run."""
    kinds = {"use": arrays.params, **{kind: arrays.named(kind) for kind in KINDS}}
    present = {(kind, dim) for kind, named in kinds.items() for _, spec in named for dim in spec.dims}
    used = {place.rules(kind).source[dim] for kind, dim in present if dim in place.rules(kind).source}
    declared: dict[str, str] = {}
    for kind in kinds:
        for dim, line in place.rules(kind).source.items():
            declared.setdefault(line, dim)  # (an inherited row stands behind the one that it is inherited from)
    findings = []
    for line, dim in declared.items():
        if line not in used:
            there = any(dim == other for _, other in present)
            why = "other rows override it in every class" if there else f"no array of this model has the dim {dim!r}"
            heirs = [heir for heir, other in INHERITED.items() if other == dim and ("params", heir) in present]
            if there or not heirs:
                findings.append(Finding(WARNING, "unused-rule", line, f"the row is never used: {why}.", "Take it out."))
            else:  # a layout for models with it and without it
                why += f", and {heirs[0]!r}, which would follow it, has a row of its own"
                findings.append(Finding(NOTE, "unused-rule", line, f"the row is not used here: {why}."))
    return findings


def _tokens_on_stages(place: Placement) -> list[Finding]:
    """Tokens cut over the axis of a pipeline's stages, which compute different layers of the same tokens."""
    rules = place.rules("activations")
    stages = place.axes("layers", "use") if place.layout.pipeline else ()
    return [
        Finding(
            ERROR,
            "tokens-on-stages",
            " and ".join((rules.source[dim], place.rules("use").source["layers"])),
            f"the {place.axis_sizes[axis]} devices of {axis!r} are the stages of the pipeline: each has other layers"
            f" and computes them for the same tokens, so the dim {dim!r} cannot be cut over them.",
            f"Take {axis!r} out of {rules.source[dim]}.",
        )
        for dim in ("batch", "length", "stream")
        for axis in stages
        if axis in rules.axes(dim)
    ]


def _idle_axes(place: Placement, used: Used) -> list[Finding]:
    """Axes larger than 1 over which nothing is cut, or nothing that is computed."""
    findings = []
    rules = place.rules("activations")
    declared = "batch" in rules.rows and not rules.axes("batch")
    layers = place.rules("use").axes("layers") if place.layout.pipeline else ()
    for axis, size in place.axis_sizes.items():
        if size == 1 or axis in layers:
            continue
        cut = {kind for kind, arrays in used.items() for _, _, axes in arrays if axis in sum(axes, ())}
        if "activations" in cut:
            continue
        if cut:
            what = f"{' and '.join(kind for kind in KINDS if kind in cut)} are cut over it, but no activation is"
        else:
            what = "nothing is cut over it"
        message = f"{what}: its {size} devices all compute the same."
        if declared:
            message = f"{message[:-1]}, as `batch=None` declares."
            findings.append(Finding(NOTE, "idle-axis", f"mesh.{axis}", message))
        else:
            remedy = _share_batch(place, axis) + " (or declare that it is meant: rules.batch=None)."
            findings.append(Finding(WARNING, "idle-axis", f"mesh.{axis}", message, remedy))
    return findings


def _share_batch(place: Placement, axis: str) -> str:
    batch = (*place.rules("activations").axes("batch"), axis)
    return f"Give each its part of the batch: rules.batch={row_text(batch)}, or mesh.{axis}=1"


def _replicated_by_accident(place: Placement, used: Used) -> list[Finding]:
    """Large weights that an axis does not cut although it cuts most of their class."""
    findings = []
    for kind in WEIGHT_KINDS:
        local = {path: local_bytes(place, kind, spec) for path, spec, _ in used[kind]}
        for axis, size in place.axis_sizes.items():
            arrays = used[kind]
            if axis in place.rules("use").axes("expert"):  # to all weights but the experts it is an axis of the batch
                arrays = [one for one in arrays if "expert" not in one[1].dims]
            cut = sum(spec.num_bytes for _, spec, axes in arrays if axis in sum(axes, ()))
            if place.layout.pipeline and axis in place.rules("use").axes("layers"):
                continue  # a pipeline's stages share only the layers out; the weights at its ends belong to no layer
            if size == 1 or cut < MOST * sum(spec.num_bytes for _, spec, _ in arrays):
                continue
            for path, spec, axes in arrays:
                lost = local[path] * (size - 1) // size
                declared = axis in place.rules(kind).axes(REPLICATED) and REPLICATED in spec.dims
                if axis in sum(axes, ()) or declared or lost < max(LARGE, MUCH * sum(local.values())):
                    continue
                findings.append(_wasted(place, kind, path, spec, axis, lost))
    return findings


def _wasted(place: Placement, kind: str, path: str, spec: ArraySpec, axis: str, lost: int) -> Finding:
    size, rules = place.axis_sizes[axis], place.rules(kind)
    shards = {dim: size * place.num_shards(dim, kind) for dim in spec.dims}
    free = [dim for dim, n in zip(spec.dims, spec.shape, strict=True) if n % shards[dim] == 0 or dim == PADDED]
    free.sort(key=lambda dim: (bool(rules.axes(dim)), dim in ("layers", "head_dim")))
    section = "rules" if any(axis in axes for axes in place.rules("use").rows.values()) else kind
    axes = (*rules.axes(free[0]), axis) if free else ()
    remedy = f"{section}.{free[0]}={row_text(axes)} would cut it." if free else "None of its dims divides."
    message = (
        f"each of its {size} devices holds all of {path} [{', '.join(spec.dims)}] ({kind}), where most of that class is"
        f" cut over it: {size_text(lost)} per device more than needed."
    )
    return Finding(WARNING, "replicated", f"mesh.{axis}", message, remedy, (f"{kind}/{path}",))


def _fewer_heads(place: Placement, arrays: Inventory) -> list[Finding]:
    """Key and value heads that are fewer than their axes: replicated inside the group, by declaration."""
    extra: dict[tuple[str, int, int], int] = {}
    paths: dict[tuple[str, int, int], list[str]] = {}
    for kind, path, spec in arrays.paths():
        if REPLICATED not in spec.dims:
            continue
        size, shards = spec.shape[spec.dims.index(REPLICATED)], place.num_shards(REPLICATED, kind)
        if size % shards:
            case = (place.rules(kind).source[REPLICATED], size, shards // math.gcd(size, shards))
            lost = local_bytes(place, kind, spec) * (case[2] - 1) // case[2] if kind in WEIGHT_KINDS else 0
            extra[case] = extra.get(case, 0) + lost
            paths.setdefault(case, []).append(f"{kind}/{path}")
    return [
        Finding(
            NOTE,
            "heads-replicated",
            line,
            f"{plural(size, 'head')} of keys and values on {plural(size * copies, 'device')}: {copies} devices hold the"
            f" same one, {size_text(lost)} of state per device more than if it could be cut. The result is the same.",
            arrays=tuple(paths[line, size, copies]),
        )
        for (line, size, copies), lost in extra.items()
    ]


def _padding(place: Placement, arrays: Inventory) -> list[Finding]:
    """The vocabulary, where it is padded until its axes divide it."""
    for _, path, spec in arrays.paths():
        physical = place.physical(spec)
        size, padded = (s.shape[s.dims.index(PADDED)] if PADDED in s.dims else 0 for s in (spec, physical))
        if size != padded:
            lines = {place.rules(kind).source[PADDED]: None for kind in ("use", *KINDS) if place.axes(PADDED, kind)}
            message = (
                f"the vocabulary of {size} is padded to {padded} so that its axes divide it. The"
                f" {plural(padded - size, 'row')} of zeros get no probability and no gradient and are in no checkpoint."
            )
            return [Finding(NOTE, "vocab-padded", " and ".join(lines), message, arrays=(path,))]
    return []


def _slow_links(place: Placement, arrays: Inventory, fast_devices: int | None) -> list[Finding]:
    """Axes that exchange activations in every layer and reach beyond the devices that share fast links."""
    if fast_devices is None:
        return []
    findings = []
    dims = {dim for _, spec in arrays.params for dim in spec.dims if "layers" in spec.dims} | {"length", "stream"}
    busy = {axis for kind in ("use", "activations") for dim in dims - {"layers"} for axis in place.axes(dim, kind)}
    stride = place.num_devices
    for axis, size in place.axis_sizes.items():
        stride //= size
        if axis not in busy or stride * size <= fast_devices:
            continue
        last = list(place.axis_sizes)[-1]
        message = (
            f"its {size} partners, {plural(stride, 'device')} apart, do not fit the {fast_devices} devices that share"
            " fast links, and they exchange activations in every layer."
        )
        remedy = f"mesh.{axis}={fast_devices} would stay inside."
        if axis != last and size <= fast_devices:
            remedy = f"Write {axis!r} last in `mesh`, so that its partners are neighbours."
        findings.append(Finding(WARNING, "slow-links", f"mesh.{axis}", message, remedy))
    return findings
