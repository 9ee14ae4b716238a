"""The few flags that a door has beside `--config` and `--layout`: taken out of the command line before it is parsed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtrain.errors import Exit, InputError, MeshtrainError, nearest
from meshtrain.run.arguments import SECTIONS, Arguments, parse
from meshtrain.run.digits import read_digits, shown
from meshtrain.run.speech import fall_silent, open_mouth, say

# What a flag takes: nothing, a whole number of at least 1, or a text.
SWITCH, NUMBER, TEXT = "switch", "number", "text"


def exit_code(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """That of a door's work on its arguments (None: the program's). What a user can mend is one message, no trace.

    STORAGE where what the work has printed cannot be written.
    """
    open_mouth()
    try:
        code = work(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except MeshtrainError as error:
        say(f"error: {error}", error=True)
        return error.exit_code
    except BrokenPipeError:
        return 0
    except OSError as error:
        if error.filename is not None:  # of a file, and not of standard output
            raise
        say(f"error: standard output cannot be written: {error.strerror or error}.", error=True)
        return Exit.STORAGE
    finally:
        fall_silent()


def take_alone(
    argv: Sequence[str], known: Mapping[str, str], required: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], Arguments]:
    """(flags found, the rest of the command line) of a door that takes no files without a flag.

    required: flag -> an example. InputError for a file, a bad value, or a required flag that is missing.
    """
    flags, files, rest = take(argv, known)
    check_names(rest, known)
    if files:
        raise InputError(f"{files[0]}: not an argument; did you mean --layout {files[0]}?")
    arguments = parse(rest)
    for name, example in ({} if arguments.help else required or {}).items():
        if name not in flags:
            raise InputError(f"--{name}: missing; for example --{name} {example}.")
    return flags, arguments


def check_names(rest: Sequence[str], known: Mapping[str, str]) -> None:
    """InputError for a flag among the rest of a command line that is nearly one of the door's."""
    valid = [f"--{name.replace('_', '-')}" for name in (*known, *SECTIONS, "help")]
    for flag in (argument.partition("=")[0] for argument in rest if argument.startswith("--")):
        if flag.partition(".")[0] not in valid and (close := nearest(flag, valid)):
            raise InputError(f"{flag}: no such argument.{close}")


def take(argv: Sequence[str], known: Mapping[str, str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """(flags found, files named without a flag, other arguments). `--name=value` is `--name value`.

    InputError for a bad value.
    """
    found: dict[str, Any] = {}
    files: list[str] = []
    rest: list[str] = []
    queue = list(argv)
    while queue:
        argument = queue.pop(0)
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not flag.startswith("--") or name not in known:
            (rest if argument.startswith("-") else files).append(argument)
            if flag.startswith(("--config", "--layout")) and not equals and queue and not queue[0].startswith("--"):
                rest.append(queue.pop(0))
            continue
        if known[name] == SWITCH:
            if equals:
                raise InputError(f"{flag}: it takes no value; write {flag} alone.")
            found[name] = True
            continue
        if not equals:
            if not queue or queue[0].startswith("--"):
                raise InputError(f"{flag}: a value must follow, for example {flag} {_example(known[name])}.")
            value = queue.pop(0)
        found[name] = _number(flag, value) if known[name] == NUMBER else value
    return found, files, rest


def _number(flag: str, value: str) -> int:
    number = read_digits(value.replace(",", "").replace("_", ""))
    if not number:
        raise InputError(f"{flag}: {shown(value)} is not a whole number of at least 1; {flag} 8 would work.")
    return number


def _example(kind: str) -> str:
    return "8" if kind == NUMBER else "FILE"
