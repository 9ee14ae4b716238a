"""What a layout's pipeline costs, from the table that the executor runs: idle share, live inputs, gathers, sends."""

from dataclasses import dataclass

from meshtrain.layout import Placement
from meshtrain.layout.table import stage_of
from meshtrain.layout.words import plural
from meshtrain.parallel.pipeline import Table, gantt, ideal_idle, lock_step_idle, schedule
from meshtrain.step.pipeline import pipeline_table

KEPT = {"input": "saved inputs", "residuals": "saved sets of residuals"}
GATHER_WORDS = {
    "step": "weights that ZeRO stores in parts are made whole once a step",
    "pass": "weights that ZeRO stores in parts are made whole in every forward and backward pass of a piece",
}


@dataclass(frozen=True)
class PipelineFacts:
    """Idle shares 0..1: of the schedule where each stage goes on as soon as it can, and as the scan runs it, in lock
    step. live_inputs: the most passes that wait on a stage for their backward pass; keep: what of each is saved. sends:
    messages of a step in either way."""

    schedule: str
    num_stages: int
    num_microbatches: int
    repeats: int
    idle: float
    lock_step_idle: float
    live_inputs: int
    sends: dict[str, int]
    keep: str
    gather: str | None  # None where ZeRO stores no weight in parts
    layers: tuple[int, ...]
    picture: str


def pipeline_facts(place: Placement, num_layers: int) -> PipelineFacts | None:
    """None without a pipeline; InputError for a schedule that does not fit. num_layers: of the stack that it cuts."""
    pipeline = place.layout.pipeline
    if pipeline is None or place.num_stages == 1:
        return None
    locked = pipeline_table(place)
    return PipelineFacts(
        schedule=pipeline.schedule,
        num_stages=place.num_stages,
        num_microbatches=pipeline.microbatches,
        repeats=pipeline.repeats,
        idle=ideal_idle(_asynchronous(place)),
        lock_step_idle=lock_step_idle(locked),
        live_inputs=int(locked.live.max()),
        sends=locked.num_sends,
        keep=pipeline.keep,
        gather=pipeline.gather if stage_of(place) == 3 else None,
        layers=pipeline.pieces(num_layers, place.num_stages),
        picture=gantt(locked),
    )


def pipeline_text(facts: PipelineFacts, width: int) -> list[str]:
    """A few lines, with the picture of the schedule where it is not wider than `width`."""
    pieces = f"{plural(facts.num_stages, 'stage')} x {plural(facts.repeats, 'piece')}"
    counts = sorted(set(facts.layers))
    layers = f"{counts[0]} to {plural(counts[-1], 'layer')}" if len(counts) > 1 else plural(counts[0], "layer")
    lines = [
        f"{facts.schedule}, {pieces} of {layers}, {plural(facts.num_microbatches, 'microbatch')}",
        f"idle {facts.lock_step_idle:.1%} as run, in lock step"
        + ("" if round(facts.idle, 4) == round(facts.lock_step_idle, 4) else f" ({facts.idle:.1%} of the ideal table)")
        + f"; at most {facts.live_inputs} {KEPT[facts.keep]} a stage;"
        f" {facts.sends['forward']:,} activations and {facts.sends['backward']:,} gradients sent",
        *([GATHER_WORDS[facts.gather]] if facts.gather else []),
    ]
    rows = facts.picture.splitlines()
    return lines + (["", *rows] if max(map(len, rows)) <= width else [])


def _asynchronous(place: Placement) -> Table:
    """The schedule as its orders say, each stage as soon as it can; a table from a file is what it is."""
    pipeline = place.layout.pipeline
    assert pipeline is not None
    return schedule(pipeline.schedule, place.num_stages, pipeline.microbatches, pipeline.repeats)
