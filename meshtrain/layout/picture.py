"""Pictures for the terminal: the mesh as a grid of device numbers, and an array cut into the parts that devices hold.

A device's number is its position in the mesh, slowest axis first: the order of hosts.

    embed over data    0:32  | 0 | 1 |     the part of rows 0:32 and columns 256:512 lies on device 1
                      32:64  | 2 | 3 |
"""

import itertools
import math
from collections.abc import Sequence

from meshtrain.layout.array import ArraySpec
from meshtrain.layout.inventory import axes_of, local_shape
from meshtrain.layout.placement import Placement
from meshtrain.layout.words import plural

MOST_ROWS = 8


def mesh_picture(place: Placement, width: int = 100) -> list[str]:
    """Device numbers by mesh coordinates: the last axis runs across, all others down."""
    names, sizes = list(place.axis_sizes), list(place.axis_sizes.values())
    if not names:
        return ["  0"]
    across, down = sizes[-1], sizes[:-1]
    labels = [
        " ".join(f"{name}={i}" for name, i in zip(names, at, strict=False))
        for at in itertools.product(*(range(size) for size in down))
    ] or [""]
    cells = [[str(row * across + column) for column in range(across)] for row in range(len(labels))]
    return _grid([f"{names[-1]}={i}" for i in range(across)], labels, cells, width)


def array_picture(place: Placement, kind: str, spec: ArraySpec, width: int = 100) -> list[str]:
    """The array as a rectangle of its two most interesting dims, each part with the numbers of its devices."""
    axes, local = axes_of(place, kind, spec), local_shape(place, kind, spec)
    shape = place.physical(spec).shape
    down, across, fixed = _choose(spec, axes)
    parts = [math.prod(place.axis_sizes[axis] for axis in of_dim) for of_dim in axes]
    cells = []
    for i in range(parts[down] if down is not None else 1):
        at = dict.fromkeys(range(len(parts)), 0)
        row = []
        for j in range(parts[across] if across is not None else 1):
            at.update({dim: part for dim, part in ((down, i), (across, j)) if dim is not None})
            row.append(_numbers(_holders(place, axes, at)))
        cells.append(row)
    lines = _grid(_ranges(shape, local, across), _ranges(shape, local, down), cells, width, boxed=True)
    titles = [f"{_title(spec, axes, d)} runs {way}" for d, way in ((down, "down"), (across, "across")) if d is not None]
    lines.insert(0, "  " + ", ".join(titles) + ":" if titles else "  a single number:")
    for dim in fixed:
        lines.append(f"  (the first of {parts[dim]} parts of {_title(spec, axes, dim)}; the others look alike)")
    return lines


def _choose(spec: ArraySpec, axes: Sequence[tuple[str, ...]]) -> tuple[int | None, int | None, list[int]]:
    """Which dimension runs down, which across, and which cut ones are shown at their first part only."""
    order = sorted(range(len(axes)), key=lambda d: (not axes[d], -spec.shape[d]))
    shown = sorted(order[:2])
    fixed = [d for d in range(len(axes)) if axes[d] and d not in shown]
    if len(shown) < 2:
        return (None, shown[0], fixed) if shown else (None, None, fixed)
    return shown[0], shown[1], fixed


def _title(spec: ArraySpec, axes: Sequence[tuple[str, ...]], dim: int) -> str:
    over = f" (over {' x '.join(axes[dim])})" if axes[dim] else " (not cut)"
    return f"{spec.dims[dim]}{over}"


def _ranges(shape: tuple[int, ...], local: tuple[int, ...], dim: int | None) -> list[str]:
    if dim is None:
        return [""]
    return [f"{start}:{start + local[dim]}" for start in range(0, shape[dim], local[dim])]


def _holders(place: Placement, axes: Sequence[tuple[str, ...]], parts: dict[int, int]) -> list[int]:
    """Numbers of the devices that hold the part with these indices."""
    fixed: dict[str, int] = {}
    for dim, of_dim in enumerate(axes):
        rest = parts[dim]
        for axis in reversed(of_dim):
            rest, fixed[axis] = divmod(rest, place.axis_sizes[axis])
    number = [0]
    for axis, size in place.axis_sizes.items():
        here = [fixed[axis]] if axis in fixed else range(size)
        number = [before * size + i for before in number for i in here]
    return number


def _numbers(numbers: list[int]) -> str:
    """`3`, `0 2 4 6`, `0-15`, or `0 8 .. 56 (8 devices)`."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    if len(numbers) <= 4:
        return " ".join(map(str, numbers))
    return f"{numbers[0]} {numbers[1]} .. {numbers[-1]} ({plural(len(numbers), 'device')})"


def _shorten(items: list[str], most: int) -> list[int | None]:
    """Indices of the items to show; None stands for those left out."""
    if len(items) <= most:
        return list(range(len(items)))
    return [*range(most - 2), None, len(items) - 1]


def _grid(across: list[str], down: list[str], cells: list[list[str]], width: int, boxed: bool = False) -> list[str]:
    """A table of cells with labels; what does not fit is left out behind `..`."""
    rows = _shorten(down, MOST_ROWS)
    wide = max(len(cells[i][j]) for i in rows if i is not None for j in {0, 1, len(across) - 1} if j < len(across))
    wide = max(wide, *(len(across[j]) for j in {0, len(across) - 1}))
    margin = max(len(label) for label in down) + 4
    columns = _shorten(across, max(3, (width - margin) // (wide + 3)))
    bar = "│" if boxed else " "

    def line(label: str, texts: list[str]) -> str:
        filled = [text.center(wide if j is not None else 2) for j, text in zip(columns, texts, strict=True)]
        return f"{label:>{margin - 2}}  {bar} " + f" {bar} ".join(filled) + f" {bar}"

    def rule(left: str, middle: str, right: str) -> str:
        return " " * margin + left + middle.join("─" * ((wide if j is not None else 2) + 2) for j in columns) + right

    lines = [line("", [across[j] if j is not None else ".." for j in columns]).replace("│", " ").rstrip()]
    lines += [rule("┌", "┬", "┐")] if boxed else []
    for n, i in enumerate(rows):
        lines += [rule("├", "┼", "┤")] if boxed and n else []
        texts = [".." if i is None or j is None else cells[i][j] for j in columns]
        lines.append(line(".." if i is None else down[i], texts).rstrip())
    return lines + ([rule("└", "┴", "┘")] if boxed else [])
