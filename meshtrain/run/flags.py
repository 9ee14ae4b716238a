"""The few flags that a door has beside `--config` and `--layout`: taken out of the command line before it is parsed."""

from collections.abc import Mapping, Sequence
from typing import Any

from meshtrain.errors import InputError

# What a flag takes: nothing, a whole number of at least 1, or a text.
SWITCH, NUMBER, TEXT = "switch", "number", "text"


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
    digits = value.replace(",", "").replace("_", "")
    if not digits.isdecimal() or int(digits) < 1:
        raise InputError(f"{flag}: {value!r} is not a whole number of at least 1; {flag} 8 would work.")
    return int(digits)


def _example(kind: str) -> str:
    return "8" if kind == NUMBER else "FILE"
