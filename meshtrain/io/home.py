"""Paths as people write them: `~` is a home folder; what no file can be called is refused with one message."""

import errno
import os
from pathlib import Path

from meshtrain.errors import InputError

_SHOWN = 80  # characters of a path in an error


def expanded(path: str | Path, key: str = "") -> Path:
    """A path with `~` and `~NAME` written out. InputError where it cannot be one: too long, or of nobody's home.

    key: what named it, for errors.
    """
    text = str(path)
    full = os.path.expanduser(text)
    name = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"
    name = f"{key}={name}" if key else name
    if full.startswith("~"):
        raise InputError(f"{name}: there is no such home; a folder whose name begins with ~ is written ./~.")
    try:
        os.stat(full)
    except ValueError as error:  # a zero in a name
        raise InputError(f"{name.replace(chr(0), '?')}: no file can be called that: {error}.") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise InputError(f"{name}: no file can be called that: {error.strerror}.") from None
    return Path(full)
