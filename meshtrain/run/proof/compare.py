"""Two outcomes side by side: the error of every tensor, the worst of each class, and the first that is too large."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshtrain.run.proof.outcome import Arrays, Outcome
from meshtrain.run.proof.tolerance import FLOOR, Tolerances, U

COUNT_ERROR = 1e-6  # of a share of tokens: far below that of one token


@dataclass(frozen=True)
class Difference:
    """One compared thing: `what` ("loss", "gradient", "parameter", "moment"), its path, its error and tolerance."""

    what: str
    path: str
    error: float
    tolerance: float

    @property
    def too_large(self) -> bool:
        """Whether rounding does not explain it; an error that is no number counts."""
        return not self.error <= self.tolerance


@dataclass(frozen=True)
class Comparison:
    """Every difference, in the order of the forward pass inside each class; `faults` are the outcome's own."""

    differences: tuple[Difference, ...]
    faults: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether all that differs is rounding."""
        return not self.faults and not any(difference.too_large for difference in self.differences)

    def worst(self, what: str) -> Difference:
        """The difference of this class that is closest to (or furthest above) its tolerance."""
        return max(self.of(what), key=lambda d: np.inf if np.isnan(d.error) else d.error / d.tolerance)

    def of(self, what: str) -> list[Difference]:
        """All differences of a class."""
        return [difference for difference in self.differences if difference.what == what]

    def first(self) -> Difference | None:
        """The first gradient that is wrong; where all are right the first other thing; None where all is right."""
        wrong = [difference for difference in self.differences if difference.too_large]
        return next((d for d in wrong if d.what == "gradient"), wrong[0] if wrong else None)


def compare(reference: Outcome, outcome: Outcome, tolerances: Tolerances, order: Sequence[str]) -> Comparison:
    """All differences of an outcome from the reference. `order`: paths of the weights as the forward pass uses them."""
    differences = [
        *_losses(reference, outcome, tolerances),
        *_tensors("gradient", outcome.gradients, reference.gradients, reference.gradients, tolerances.gradient, order),
        _norm(reference, outcome, tolerances),
        *_tensors("moment", outcome.moments, reference.moments, reference.moments, tolerances.moment, order),
        *_parameters(reference, outcome, tolerances, order),
    ]
    faults = list(outcome.faults)
    faults += [
        f"initial weights: {path} is not bitwise that of the reference"
        for path, value in reference.initial.items()
        if not np.array_equal(value, outcome.initial[path])
    ]
    for step, metrics in enumerate(outcome.metrics, 1):
        if metrics["num_tokens"] != reference.metrics[step - 1]["num_tokens"]:
            faults.append(f"step {step} counts {metrics['num_tokens']:.0f} tokens")
        if metrics["skipped"] != reference.metrics[step - 1]["skipped"]:
            faults.append(f"step {step} was {'skipped' if metrics['skipped'] else 'not skipped'}")
    faults += _routing_faults(reference, outcome)
    return Comparison(tuple(differences), tuple(faults))


def _routing_faults(reference: Outcome, outcome: Outcome) -> Iterator[str]:
    """Layers whose experts got, or dropped, another number of tokens: counts, so they agree exactly or not at all."""
    for step, (found, expected) in enumerate(zip(outcome.routers, reference.routers, strict=True), 1):
        for name in ("load", "drop_share"):
            if name in expected and (off := np.abs(found[name] - expected[name]) > COUNT_ERROR).any():
                layer = int(np.argwhere(off)[0][0])
                yield f"step {step}: {name.replace('_', ' ')} of the experts of MoE layer {layer} differs"


def _losses(reference: Outcome, outcome: Outcome, tolerances: Tolerances) -> Iterator[Difference]:
    """The loss of every step and its parts, relative to the reference."""
    for step, (found, expected) in enumerate(zip(outcome.metrics, reference.metrics, strict=True), 1):
        tolerance = tolerances.loss * step
        for name in (name for name in ("loss", "ce", "z_loss", "balance_loss", "router_z_loss") if name in expected):
            error = abs(found[name] - expected[name]) / max(abs(expected[name]), 1e-30)
            yield Difference("loss", f"{name} of step {step}", error if expected[name] else abs(found[name]), tolerance)


def _norm(reference: Outcome, outcome: Outcome, tolerances: Tolerances) -> Difference:
    """The gradient's global norm, which clipping divides by."""
    found, expected = outcome.metrics[0]["grad_norm"], reference.metrics[0]["grad_norm"]
    return Difference("gradient", "(its global norm)", abs(found - expected) / expected, tolerances.gradient)


def _tensors(
    what: str, found: Arrays, expected: Arrays, size: Arrays, tolerance: float, order: Sequence[str]
) -> Iterator[Difference]:
    """The largest difference of each tensor over its largest `size`, but over no less than FLOOR of its class."""
    largest: dict[str, float] = {}
    for path, value in size.items():
        kind = path.rpartition(" of ")[0]
        largest[kind] = max(largest.get(kind, 0.0), _max(value))
    for path in sorted(expected, key=lambda path: _rank(path, order)):
        scale = max(_max(size[path]), FLOOR * largest[path.rpartition(" of ")[0]], 1e-30)
        error = _max(found[path].astype(np.float64) - expected[path].astype(np.float64)) / scale
        yield Difference(what, path, error, tolerance)


def _parameters(
    reference: Outcome, outcome: Outcome, tolerances: Tolerances, order: Sequence[str]
) -> Iterator[Difference]:
    """Parameters, relative to how far each moved; a stored weight's own rounding is allowed for on top."""
    moved = {path: value - reference.initial[path] for path, value in reference.params.items()}
    for difference in _tensors("parameter", outcome.params, reference.params, moved, tolerances.parameter, order):
        path = difference.path
        scale = max(_max(moved[path]), FLOOR * max(map(_max, moved.values())), 1e-30)
        rounding = 2 * len(reference.metrics) * U * _max(reference.params[path]) / scale
        yield Difference("parameter", path, difference.error, difference.tolerance + rounding)


def _rank(path: str, order: Sequence[str]) -> int:
    weight = path.rpartition(" of ")[2]
    return order.index(weight) if weight in order else len(order)


def _max(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))
