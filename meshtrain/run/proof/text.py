"""A proof as text: what was shrunk, one row for each layout, and for each failure what is wrong and where to look."""

from collections.abc import Sequence

from meshtrain.layout.finding import ERROR
from meshtrain.layout.words import plural, sizes_text
from meshtrain.run.proof.compare import Comparison
from meshtrain.run.proof.prove import EPSILON, LEARNING_RATE, Proof, Verdict
from meshtrain.run.proof.shrink import features
from meshtrain.run.terminal import aligned, wrapped

COLUMNS = ("layout", "mesh", "loss", "worst gradient", "worst parameter", "worst moment", "verdict")


def preface(proof: Proof) -> str:
    """What is computed, what was shrunk and what was changed for the sake of the proof."""
    case, shrunk, limits = proof.case, proof.shrunk, proof.tolerances
    optimizer = case.config.optimizer
    paragraphs = [
        f"{plural(case.num_steps, 'step')} of the real training step in float32 on {proof.on}, compared with"
        f" {proof.reference_name}.",
        f"The model is shrunk: {', '.join(shrunk.changes) or 'nothing'}. It still has {features(shrunk.model)}."
        " Whether the layout fits the real sizes is what `show` tells.",
        f"The batch: {plural(shrunk.global_batch, 'row')} of {plural(shrunk.length, 'token')}, packed documents,"
        f" padding, an uneven loss mask, one row in four without any counted token.",
        f"The optimizer: {optimizer.name} as in the run, but a constant learning rate of {LEARNING_RATE:g} and epsilon"
        f" {EPSILON:g}, so that an update is a smooth function of the gradient.",
        f"Tolerances, from the model's depth and float32's rounding: loss {limits.loss:.1e}, gradients"
        f" {limits.gradient:.1e}, parameters {limits.parameter:.1e} of what they moved, moments {limits.moment:.1e}.",
    ]
    return "\n".join("\n".join(wrapped(paragraph)) for paragraph in paragraphs)


def table(verdicts: Sequence[Verdict]) -> str:
    """One row for each layout: the worst error of each class, and the verdict."""
    return "\n".join(aligned([COLUMNS, *(_row(verdict) for verdict in verdicts)], right=False))


def _row(verdict: Verdict) -> tuple[str, ...]:
    mesh = sizes_text(verdict.axis_sizes) + (" (shrunk)" if verdict.shrunk_mesh else "")
    comparison = verdict.comparison
    errors = ["-"] * 4 if comparison is None else [_error(comparison, what) for what in CLASSES]
    return (verdict.name, mesh or "-", *errors, verdict.status)


CLASSES = ("loss", "gradient", "parameter", "moment")


def _error(comparison: Comparison, what: str) -> str:
    return f"{comparison.worst(what).error:.1e}" if comparison.of(what) else "none"


def details(verdict: Verdict) -> str:
    """What is wrong with a layout that is not equal, in words; nothing for one that is."""
    if verdict.status == "refused":
        errors = [finding for finding in verdict.findings if finding.severity == ERROR]
        return "\n".join([f"{verdict.name} is refused:", *(line for error in errors for line in _indented(str(error)))])
    if verdict.status == "CRASHED":
        crash = _indented((verdict.crash or "")[:2000])
        return "\n".join([f"{verdict.name} crashed, which is a fault of the program:", *crash])
    comparison = verdict.comparison
    if verdict.status == "equal" or comparison is None:
        return ""
    lines = [f"{verdict.name} DIFFERS: {verdict.words}."]
    for fault in comparison.faults[:5]:
        lines += _indented(f"{fault}.")
    first = verdict.first
    if first is not None:
        order = ", in the order of the forward pass," if first.what == "gradient" else ""
        where = first.path if first.what == "loss" else f"{first.what} of {first.path}"
        size = f"error {first.error:.2g}, tolerance {first.tolerance:.1e}"
        lines += _indented(f"The first{order} is the {where} ({size}).")
    if verdict.explanation is not None:
        lines += _indented(str(verdict.explanation))
    if first is not None:
        lines += _indented(_extent(comparison))
    return "\n".join(lines)


def _extent(comparison: Comparison) -> str:
    """How far the damage goes: how many of each class are wrong, and which part of the step can have done it."""
    wrong = {what: [d.too_large for d in comparison.of(what)] for what in CLASSES}
    parts = [f"{sum(wrong[what])} of {plural(len(wrong[what]), what)}" for what in CLASSES[1:]]
    forward = any(d.too_large for d in comparison.of("loss") if d.path.endswith("step 1"))
    gradients = [d for d in comparison.of("gradient") if not d.path.startswith("(")]
    right = [d.path for d in reversed(gradients) if not d.too_large]
    after = next((n for n, d in enumerate(reversed(gradients)) if d.too_large), len(gradients))
    if forward and not any(wrong["gradient"]):
        start = "All gradients are right: only the loss that is reported is wrong, not the one that is differentiated"
    elif forward:
        start = "The loss of the first step is wrong already: the forward pass differs"
    elif not any(wrong["gradient"]):
        start = "Loss and gradients of the first step are right: the update differs"
    elif after:
        start = (
            f"The loss of the first step is right: the forward pass agrees. In its order all gradients from"
            f" {right[after - 1]} on are right, so the way back goes wrong just before that"
        )
    else:
        start = "The loss of the first step is right: the forward pass agrees, and the way back differs from its start"
    return f"{start}. Wrong are {', '.join(parts)}."


def _indented(text: str) -> list[str]:
    return wrapped(text, indent=" " * 4, first=" " * 4)
