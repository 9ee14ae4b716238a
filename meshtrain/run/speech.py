"""What a program says, to whoever still listens: a closed pipe, a full disk or a name that is no UTF-8 end no work."""

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_mouth() -> None:
    """Called by a door before it says anything: what a stream's encoding lacks is written with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str, end: str = "\n", error: bool = False) -> bool:
    """Says a line, on standard output (or as an `error`). Whether it could be said; if not, no more is said there."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(text, end=end, flush=True, file=stream)
    except (OSError, ValueError):  # ValueError: of a stream that is closed
        _silence(stream)
        return False
    return True


def fall_silent() -> None:
    """Called by a door at its end: what could not be said is dropped, so that the interpreter does not fail on it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _silence(stream)


def _silence(stream: TextIO) -> None:
    """What it still holds, and all that follows, goes nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
