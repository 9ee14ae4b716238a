"""A plan as text for the terminal: what fits, what it computes, how long it takes, what is wrong."""

from meshtrain.cost.goodput import Goodput
from meshtrain.cost.memory import Part, Saved
from meshtrain.layout.words import plural, size_text
from meshtrain.run.plan.report import RESTART_SECONDS, SAVE_SECONDS, PlanReport
from meshtrain.run.plan.traffic import traffic_lines
from meshtrain.run.show.pipeline import pipeline_text
from meshtrain.run.show.text import findings_text
from meshtrain.run.terminal import WIDTH, aligned, shape_text

BAR = 40


def plan_text(report: PlanReport) -> str:
    """The whole plan of a run under one layout."""
    lines = [
        f"{report.name} on {plural(report.place.num_devices, 'GPU')} of {report.cluster.name} ({report.cluster.gpu})",
        "",
        f"  This is {report.words}.",
        f"  {report.num_parameters:,} parameters, {report.global_batch:,} rows x {report.length:,} tokens"
        f" = {report.global_batch * report.length:,} tokens a step",
        "",
        *memory_lines(report),
        "",
        *time_lines(report),
        "",
        *traffic_lines(report.traffic),
        "",
    ]
    if report.pipeline is not None:
        lines += ["PIPELINE", "", *(f"  {line}" for line in pipeline_text(report.pipeline, WIDTH - 2)), ""]
    for window, blocks in report.balance.items():
        worst = max(blocks) * len(blocks) / sum(blocks)
        kind = "causal layers" if window is None else f"layers with a window of {window:,}"
        lines += [f"CONTEXT BALANCE in {kind}: the busiest of {len(blocks)} shards has {worst:.2f} times the mean", ""]
    if report.goodput is not None:
        lines += [*goodput_lines(report.goodput), ""]
    return "\n".join([*lines, *findings_text(report.findings)])


def goodput_lines(goodput: Goodput) -> list[str]:
    """What failures and checkpoints leave of the time, and how often to save."""
    return [
        f"GOODPUT {goodput.share:.1%}: a failure every {goodput.between_failures / 3600:,.1f} h; save every"
        f" {goodput.advised / 60:,.0f} minutes; lost to saving {goodput.saving:.1%}, to work done again"
        f" {goodput.again:.1%}, to restarts {goodput.restarting:.1%}",
        f"  (a checkpoint holds the step up {SAVE_SECONDS:g} s, a restart takes {RESTART_SECONDS:g} s)",
    ]


def memory_lines(report: PlanReport) -> list[str]:
    """Memory by class for the worst stage, beside the device's limit."""
    memory, limit = report.memory, report.limit
    rows = [(part.name, part.what, _bar(part.num_bytes, limit), size_text(part.num_bytes)) for part in memory.parts]
    counted = max((part for part in memory.parts if part.transient), key=lambda part: part.num_bytes, default=None)
    marked = [_marked(row, part, counted) for row, part in zip(rows, memory.parts, strict=True)]
    total = ("peak", f"of {size_text(limit)}: {report.verdict}", _bar(memory.peak, limit), size_text(memory.peak))
    saved = sorted(memory.saved, key=lambda array: -array.num_bytes)
    return [
        "MEMORY of one device, for the worst stage",
        "",
        *aligned([*marked, total]),
        "",
        f"  headroom {size_text(max(limit - memory.peak, 0))}"
        + ("" if memory.peak <= limit else f"; {size_text(memory.peak - limit)} too much"),
        "  (-) comes and goes; only the largest of these counts, marked (+)",
        "",
        "  A layer keeps for its backward pass, of one microbatch:",
        *aligned([_saved(array) for array in saved if array.num_bytes * 200 > saved[0].num_bytes] or [("", "")]),
    ]


def time_lines(report: PlanReport) -> list[str]:
    """Seconds by cause, what is hidden, and what follows."""
    time = report.time
    shares = [
        (name, f"{seconds / time.seconds:6.1%}", _milliseconds(seconds))
        for name, seconds in time.parts.items()
        if seconds
    ]
    hidden = [(f"{name} (hidden)", "", _milliseconds(seconds)) for name, seconds in time.hidden.items() if seconds]
    lines = ["TIME of one step, predicted", "", *aligned([*shares, ("step", "", _milliseconds(time.seconds)), *hidden])]
    lines += [
        "",
        f"  {time.tokens_per_second:,.0f} tokens/s, {time.flops_per_device / 1e12:,.0f} TFLOP/s a GPU,"
        f" MFU {time.mfu:.1%}, HFU {time.hfu:.1%}",
        f"  {report.flops_per_token:.4g} model FLOPs a token",
    ]
    if report.cost_per_token is not None:
        lines.append(
            f"  {report.cost_per_token * 1e9:,.2f} USD per 1e9 tokens at {report.cluster.price:g} USD a GPU-hour"
        )
    return [*lines, f"  {bill_text(report)}"]


def bill_text(report: PlanReport) -> str:
    """What the whole run takes: `235,000 steps: 45.3 days, 2,224,000 GPU-hours, 5,560,000 USD`."""
    bill = report.bill
    usd = "" if bill.usd is None else f", {bill.usd:,.0f} USD"
    with_failures = " with what failures lose" if report.goodput else ""
    days = f"{bill.hours / 24:,.1f} days" if bill.hours > 48 else f"{bill.hours:,.2f} hours"
    return f"{plural(report.num_steps, 'step')}: {days}, {bill.gpu_hours:,.0f} GPU-hours{usd}{with_failures}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _marked(row: tuple[str, ...], part: Part, counted: Part | None) -> tuple[str, ...]:
    if not part.transient:
        return row
    return (f"{row[0]} ({'+' if part is counted else '-'})", *row[1:])


def _bar(num_bytes: float, limit: float) -> str:
    return "#" * min(round(BAR * num_bytes / limit), BAR + 8)


def _saved(array: Saved) -> tuple[str, ...]:
    name = array.name or ("gathered input" if array.gathered else "")
    return name, f"{array.dtype} {shape_text(array.shape)}", size_text(array.num_bytes)
