"""What a wrong tensor looks like and what usually causes it: a constant factor, misplaced parts, or neither."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshtrain.layout import ArraySpec, Placement
from meshtrain.layout.inventory import axes_of
from meshtrain.layout.words import listing

NEAR = 1e-3  # how exactly a factor must hold in every entry to be called one


@dataclass(frozen=True)
class Explanation:
    """pattern: what the wrong tensor is, seen from the right one. cause: where to look."""

    pattern: str
    cause: str

    def __str__(self) -> str:
        return f"It {self.pattern}. {self.cause}"


def explain(found: np.ndarray, expected: np.ndarray, spec: ArraySpec, kind: str, place: Placement) -> Explanation:
    """Describes how `found` differs from `expected`, two arrays of logical shape of the class `kind`."""
    if not np.isfinite(found).all():
        share = np.count_nonzero(~np.isfinite(found)) / found.size
        return Explanation(
            f"is not finite in {share:.0%} of its entries",
            "Look for a division by zero: a part without a counted token, a row without a visible key.",
        )
    if not found.any():
        return Explanation(
            "is 0 everywhere",
            "The way back to this weight is cut: a stopped gradient, a custom backward pass that returns zeros, or a"
            " branch that is never taken.",
        )
    factor = constant_factor(found, expected)
    if factor is not None:
        return _of_factor(factor, spec, kind, place)
    return _of_parts(found, expected, spec, kind, place) or Explanation(
        "differs without a constant factor",
        "Each device may have used its own part where a sum over an axis belongs, or other tokens, masks or positions"
        " than it should; the weights used before this one are right.",
    )


def constant_factor(found: np.ndarray, expected: np.ndarray) -> float | None:
    """c with found = c * expected in every entry, to NEAR of the largest; None where there is none."""
    a, b = found.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
    size = float(b @ b)
    if size == 0:
        return None
    factor = float(a @ b) / size
    close = np.max(np.abs(a - factor * b)) <= NEAR * max(abs(factor), NEAR) * np.max(np.abs(b))
    return factor if close else None


def _of_factor(factor: float, spec: ArraySpec, kind: str, place: Placement) -> Explanation:
    for value, reason, cause in _known_factors(place):
        if abs(factor - value) <= NEAR * abs(value):
            said = f"is {_number(value)} times what it should be in every entry"
            return Explanation(f"{said}: {reason}" if reason else said, cause)
    return Explanation(
        f"is {factor:.6g} times what it should be in every entry",
        "No axis and no number of microbatches explains this factor; look for a weight of the loss or a scale.",
    )


def _known_factors(place: Placement) -> Iterator[tuple[float, str, str]]:
    """(factor, what it is, likely cause), the simplest first."""
    batch, large = place.axes("batch"), {a: n for a, n in place.axis_sizes.items() if n > 1}
    for count in range(1, len(large) + 1):
        for axes in itertools.combinations(large, count):
            size, names = math.prod(large[axis] for axis in axes), " x ".join(f"`{axis}`" for axis in axes)
            if set(axes) <= set(batch):
                more = f"The sum over the parts of the batch on {names} may be taken twice."
                less = f"The parts of the batch on {names} are averaged where they must add up."
            else:
                more = f"Copies along {names} are summed although each holds the whole already: one sum too many."
                less = f"Only one of the parts along {names} arrives: a sum is missing, or a mean in its place."
            yield size, f"the size of {names}", more
            yield 1 / size, f"1 over the size of {names}", less
    num = place.layout.accumulate
    if num > 1:
        yield num, "the number of microbatches (accumulate)", "Microbatches are counted as often as there are of them."
        yield (
            1 / num,
            "1 over the number of microbatches (accumulate)",
            ("Microbatches are averaged where they must be summed (the loss is divided by the tokens of all of them)."),
        )
    yield 2, "", "It is counted twice, such as a shared weight or a copy on two devices."
    yield 0.5, "", "One of two contributions is missing, such as one use of a shared weight."
    yield -1, "the sign is wrong", "Look for a gradient subtracted where it belongs added."
    yield 1, "it is right but for single entries", "Look at the entries with the largest difference."


def _of_parts(
    found: np.ndarray, expected: np.ndarray, spec: ArraySpec, kind: str, place: Placement
) -> Explanation | None:
    """Whether some parts along one dimension are right, or all are there in another order."""
    axes = axes_of(place, kind, spec)
    for dim, of_dim in enumerate(axes):
        num = math.prod(place.axis_sizes[axis] for axis in of_dim) if of_dim else 0
        num = expected.shape[dim] if spec.dims[dim] == "layers" else num
        if num < 2 or expected.shape[dim] % num:
            continue
        a, b = (np.split(x, num, axis=dim) for x in (found, expected))
        what = "layers" if spec.dims[dim] == "layers" else f"parts of {spec.dims[dim]!r}"
        over = f" (cut over {' x '.join(of_dim)})" if of_dim else ""
        wrong = [i for i in range(num) if not _close(a[i], b[i])]
        if len(wrong) < num:
            return Explanation(
                f"is right but for number {_indices(wrong)} of the {num} {what}{over}, counted from 0",
                "Something happens to that part alone: a condition on the device's number, a shift by one, padding.",
            )
        source = [next((j for j in range(num) if _close(a[i], b[j])), None) for i in range(num)]
        if all(j is not None for j in source):
            return Explanation(
                f"has the {num} {what}{over} in the order {_indices(source)}",  # type: ignore[arg-type]
                "A permutation sends parts to the wrong device, or cuts and joins in different orders.",
            )
    return None


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.max(np.abs(a - b), initial=0.0) <= NEAR * max(float(np.max(np.abs(b), initial=0.0)), 1e-30))


def _indices(numbers: Sequence[int]) -> str:
    shown = [str(number) for number in numbers[:8]]
    return listing(shown) if len(numbers) <= 8 else ", ".join(shown) + ", .."


def _number(value: float) -> str:
    return f"{value:g}" if value >= 1 or value < 0 else f"1/{1 / value:g}"
