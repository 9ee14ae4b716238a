"""The ways in which a program ends that its user can act on; each carries its documented exit code.

A door (`python -m meshtrain.<door>`) prints the message of such an error and nothing else: no trace of our own frames.
"""

import difflib
from collections.abc import Iterable


class MeshtrainError(Exception):
    """An end that the user can act on: the text of the error is the whole message."""

    exit_code = 1


class InputError(MeshtrainError):
    """What the user gave cannot be used; the message names the key, the values and a way out."""

    exit_code = 2


class NonFiniteError(MeshtrainError):
    """Too many steps in a row had a loss or a gradient that is not finite."""

    exit_code = 3


class StorageError(MeshtrainError):
    """The run's folder cannot be read or written: no room, no permission, a failed save."""

    exit_code = 4


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint to append to an error: ` Did you mean 'x'?`, or nothing where no valid name is close."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
