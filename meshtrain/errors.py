"""The ways in which a program ends that its user can act on; each carries its documented exit code.

A door (`python -m meshtrain.<door>`) prints the message of such an error and nothing else: no trace of our own frames.
"""

import difflib
from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """The trainer's exit codes, with what each means. One list: the help text and the README say the same."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> "Exit":
        """A code and its meaning."""
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    DONE = 0, "done: the last step is reached and saved"
    FAULT = 1, "a fault of the program"
    BAD_INPUT = 2, "bad input: configuration or data"
    NOT_FINITE = 3, "too many steps in a row that are not finite"
    STORAGE = 4, "the run's folder cannot be read or written"
    PREEMPTED = 5, "stopped by a signal, and saved: the same command goes on"
    HANG = 6, "no progress within the budget: stacks and the processes behind are on standard error"
    PEER_LOST = 7, "another process was lost: the same command, on whatever machines there are, goes on"
    INTERRUPTED = 130, "Ctrl-C twice: ended at once, unsaved"


class MeshtrainError(Exception):
    """An end that the user can act on: the text of the error is the whole message."""

    exit_code: int = Exit.FAULT


class InputError(MeshtrainError):
    """What the user gave cannot be used; the message names the key, the values and a way out."""

    exit_code = Exit.BAD_INPUT


class NonFiniteError(MeshtrainError):
    """Too many steps in a row had a loss or a gradient that is not finite."""

    exit_code = Exit.NOT_FINITE


class StorageError(MeshtrainError):
    """The run's folder cannot be read or written: no room, no permission, a failed save."""

    exit_code = Exit.STORAGE


class PeerError(MeshtrainError):
    """Another process of the run did not come, went away or ended with an error."""

    exit_code = Exit.PEER_LOST


def one_of(key: str, value: object, valid: Iterable[str]) -> str:
    """`value`, where it is one of the words that a config key takes; else an InputError with all of them."""
    words = tuple(valid)
    if value not in words:
        raise InputError(f"{key}: {value!r} is not one of {', '.join(words)}.{nearest(str(value), words)}")
    return str(value)


def whole_number(key: str, value: object, least: int = 1) -> None:
    """InputError where the value of a config key is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{key}: expected a whole number of at least {least}, not {value!r}.")


def known_keys(section: str, given: Iterable[str], valid: Iterable[str]) -> None:
    """InputError for the first key that a section of a config does not have."""
    names = tuple(valid)
    for key in given:
        if key not in names:
            raise InputError(
                f"{section}.{key}: there is no such key.{nearest(key, names)} The keys are: {' '.join(names)}."
            )


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or else its type: those of libraries go on for pages."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint to append to an error: ` Did you mean 'x'?`, or nothing where no valid name is close."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""
