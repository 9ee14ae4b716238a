"""Text as the terminal shows it, alike for all reports: columns, sentences cut into lines, shapes. Needs no JAX."""

import textwrap
from collections.abc import Sequence

WIDTH = 110  # characters of a line, at most


def aligned(table: Sequence[Sequence[str]], right: bool = True) -> list[str]:
    """Columns as wide as their widest cell; the last one, if it holds sizes, to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for row in table:
        *first, last = row
        cells = [cell.ljust(width) for cell, width in zip(first, widths, strict=False)]
        lines.append("  " + "  ".join([*cells, last.rjust(widths[-1]) if right else last]))
    return lines


def wrapped(text: str, indent: str = "  ", first: str = "  ") -> list[str]:
    """A sentence as lines of at most WIDTH."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)


def shape_text(shape: tuple[int, ...]) -> str:
    """`2 x 64 x 128`."""
    return " x ".join(f"{size:,}" for size in shape) or "one number"
