"""A report as text for the terminal: aligned, grouped, the words first, then the arrays, the totals, what is wrong."""

from collections.abc import Sequence

from meshtrain.layout.finding import ERROR, NOTE, WARNING, Finding
from meshtrain.layout.inventory import WEIGHT_KINDS
from meshtrain.layout.order import num_chunks
from meshtrain.layout.picture import array_picture, mesh_picture
from meshtrain.layout.table import Row, gathered
from meshtrain.layout.words import listing, plural, size_text, sizes_text
from meshtrain.run.show.pipeline import pipeline_text
from meshtrain.run.show.report import Report
from meshtrain.run.terminal import WIDTH, aligned, shape_text, wrapped

HEADINGS = {
    "params": "PARAMS: the copy of the weights that computes",
    "grads": "GRADS: gradients as they are summed",
    "optimizer": "OPTIMIZER: float32 master weights, moments and counters",
    "activations": "ACTIVATIONS: one microbatch, at each place where the model fixes a sharding",
}
COLUMNS = ("array", "dims and the axes that cut them", "whole", "on one device", "dtype", "bytes")


def report_text(report: Report, pictures: Sequence[str] = ()) -> str:
    """The whole report. `pictures`: paths of arrays to draw (`params/layers/mlp/up`, or without the class)."""
    lines = [
        f"{report.name} on {plural(report.place.num_devices, 'device')}",
        "",
        *wrapped(f"This is {report.words}."),
        "",
        *_heading_facts(report),
        "",
    ]
    if report.tables:  # otherwise something cannot be placed, and that is all there is to say
        lines += [*_tables(report), *_totals(report), "", *_decay(report), ""]
        lines += ["WHO HOLDS WHAT: devices by their place in the mesh", "", *mesh_picture(report.place, WIDTH), ""]
        if num_chunks(report.place)[1] > 1:
            lines += [
                *wrapped("Positions are columns of the batch as it arrives: tokens dealt out in the zigzag."),
                "",
            ]
        for path in pictures or _default_pictures(report):
            lines += [*picture_text(report, path), ""]
    return "\n".join([*lines, *findings_text(report.findings)])


def _heading_facts(report: Report) -> list[str]:
    place = report.place
    layout, parts = place.layout, place.num_shards("batch")
    mesh = sizes_text(place.axis_sizes) or "one device, no axes"
    each = report.global_batch // (parts * place.num_microbatches)
    over = f" ({' x '.join(place.axes('batch'))})" if parts > 1 else ""
    batch = f"{plural(report.global_batch, 'sequence')} x {report.length:,} tokens"
    fits = report.global_batch == each * parts * place.num_microbatches
    split = f"= {each:,} a device x {plural(parts, 'part')}{over} x {plural(place.num_microbatches, 'microbatch')}"
    facts = {
        "mesh": f"{mesh}{'  (slowest-changing first)' if len(place.axis_sizes) > 1 else ''}",
        "batch": f"{batch} = {report.global_batch * report.length:,} tokens a step",
        "": split if fits else "",
        "remat": layout.remat,
        "attention": layout.attention + (f", {layout.order} order" if place.num_shards("length") > 1 else ""),
    }
    lines = [f"  {key:<10}{value}" for key, value in facts.items() if value]
    for window, blocks in report.balance.items():
        lines += wrapped(_balance(window, blocks), " " * 12, " " * 12)
    if report.pipeline is not None:
        first, *more = pipeline_text(report.pipeline, WIDTH - 12)
        lines += [f"  {'pipeline':<10}{first}", *(f"{'':<12}{line}".rstrip() for line in more)]
    return lines


def _balance(window: int | None, blocks: Sequence[int]) -> str:
    """The work of attention on each shard of the length, as counted from the ring's schedule."""
    layers = "causal" if window is None else f"window {window:,}"
    listed = ", ".join(map(str, blocks)) if len(blocks) <= 8 else f"{min(blocks):,} to {max(blocks):,}"
    slowest = max(blocks) * len(blocks) / sum(blocks)
    verdict = "even" if slowest < 1.005 else f"the most is {slowest:.2f} times the mean"
    return f"work of the {len(blocks)} shards in a {layers} layer, in blocks of queries and keys: {listed} ({verdict})"


def _tables(report: Report) -> list[str]:
    weights = [path for path, _ in report.arrays.params]
    lines: list[str] = []
    before: list[tuple[str, ...]] = []
    for kind, table in report.tables.items():
        table = gathered(table, weights) if kind == "optimizer" else table
        total = f": {size_text(sum(row.num_bytes for row in table))} per device" if kind in WEIGHT_KINDS else ""
        cells = [_cells(row) for row in table]
        shown = ["  each array as above"] if cells == before else aligned([COLUMNS, *cells])
        lines += [HEADINGS[kind] + total, "", *shown, ""]
        before = cells
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    dtype = f"{row.count} x {row.dtype}" if row.count > 1 else row.dtype
    return row.path, row.cut, shape_text(row.shape), shape_text(row.local), dtype, size_text(row.num_bytes)


def _totals(report: Report) -> list[str]:
    total = sum(report.state_bytes.values())
    share = {kind: size_text(size) for kind, size in report.state_bytes.items()}
    rows = [(kind, share[kind]) for kind in WEIGHT_KINDS]
    lines = ["STATE per device, without activations", "", *aligned([*rows, ("together", size_text(total))])]
    if report.bytes_by_stage is not None:
        lines += ["", "  The same by ZeRO stage:"]
        names = {stage: f"ZeRO-{stage}" if stage else "no ZeRO" for stage in report.bytes_by_stage}
        stages = aligned([(names[stage], size_text(size)) for stage, size in report.bytes_by_stage.items()])
        stages[report.stage] += "  <- this layout"
        lines += stages
    return lines


def _decay(report: Report) -> list[str]:
    yes = [path for path, decays in report.decays.items() if decays]
    no = [path for path, decays in report.decays.items() if not decays]
    return [
        f"WEIGHT DECAY {report.weight_decay:g}",
        "",
        *wrapped("decays: " + (", ".join(yes) or "nothing"), "          "),
        *wrapped("does not: " + (", ".join(no) or "nothing"), "            "),
    ]


def _default_pictures(report: Report) -> list[str]:
    """The largest weight as it is stored, and the largest activation."""
    chosen = []
    for kind in ("optimizer", "activations"):
        arrays = [(path, spec) for path, spec in report.arrays.named(kind) if spec.dims]
        chosen.append(f"{kind}/{max(arrays, key=lambda item: item[1].num_bytes)[0]}")
    return chosen


def picture_text(report: Report, name: str) -> list[str]:
    """The picture of one array, by path with or without its class; InputError with the nearest path."""
    from meshtrain.errors import InputError, nearest

    known = {f"{kind}/{path}": (kind, spec) for kind, path, spec in report.arrays.paths()}
    path = next((full for full in known if full == name or full.split("/", 1)[1] == name), None)
    if path is None:
        short = [full.split("/", 1)[1] for full in known]
        raise InputError(f"--array: there is no array {name!r}.{nearest(name, [*known, *short])}")
    kind, spec = known[path]
    shape = f"[{', '.join(spec.dims)}] {shape_text(spec.shape)}"
    return [f"  {path}  {shape}", *array_picture(report.place, kind, spec, WIDTH)]


def findings_text(findings: Sequence[Finding]) -> list[str]:
    """Every finding under its severity, and how many there are of each."""
    lines = []
    for severity in (ERROR, WARNING, NOTE):
        for finding in (found for found in findings if found.severity == severity):
            lines += wrapped(f"{severity}: {finding}", "    ")
            if finding.arrays:
                more = [f"{len(finding.arrays) - 3:,} more"] if len(finding.arrays) > 3 else []
                lines += wrapped(f"in {listing([*finding.arrays[:3], *more])}", "    ", "    ")
    counts = [plural(sum(f.severity == s for f in findings), s) for s in (ERROR, WARNING, NOTE)]
    return [*lines, *([""] if lines else []), ", ".join(counts)]
