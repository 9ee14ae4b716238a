"""Whole numbers as people and launchers spell them: `int` refuses 5,000 digits with an error of its own."""

LARGEST = 2**63 - 1  # what arrays, files and clocks hold
_SHOWN = 60  # characters of a text in an error


def read_digits(text: str) -> int | None:
    """The number that a text of digits spells; None where it is something else, or beyond LARGEST."""
    if not text.isdecimal() or len(text.lstrip("0")) > len(str(LARGEST)):
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= LARGEST else None


def shortened(text: str) -> str:
    """A text, or the beginning of a long one."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def shown(value: object) -> str:
    """A value as an error writes it; of a long text its beginning."""
    if isinstance(value, str) and len(value) > _SHOWN:
        return f"{value[:_SHOWN]!r}... ({len(value):,} characters)"
    try:
        return repr(value)
    except ValueError:  # a number of too many digits for Python to write
        return f"a {type(value).__name__} of very many digits"
