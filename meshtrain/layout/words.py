"""Numbers in words: sizes, counts, lists, meshes. Decimal units throughout (1 kB = 1000 bytes), as on data sheets."""

from collections.abc import Iterable, Mapping


def size_text(num_bytes: float) -> str:
    """Bytes for people, three digits: 999 B, 1.23 kB, 45.6 MB, 789 GB."""
    if num_bytes < 1000:
        return f"{num_bytes:.0f} B"
    value, units = num_bytes / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 999.5 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `3 copies`, `16,384 devices`."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Mesh axes with their sizes: `data=2 x stage=4`; "" for none."""
    return " x ".join(f"{axis}={size}" for axis, size in sizes.items())


def listing(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
