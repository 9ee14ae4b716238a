"""The command line: `--config FILE`, `--layout FILE` and their dotted overrides. There are no other knobs.

    --config FILE  --layout FILE  --config.optimizer.learning_rate=1e-4  --layout.mesh.data=4

A later override of the same key wins; naming a file twice is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshtrain.errors import InputError, nearest

SECTIONS = ("config", "layout")


@dataclass(frozen=True)
class Arguments:
    """What the command line says: the two files, and the text of each override by its dotted key in its section."""

    config: str | None = None
    layout: str | None = None
    overrides: dict[str, dict[str, str]] = field(default_factory=lambda: {section: {} for section in SECTIONS})
    help: bool = False


def parse(argv: Sequence[str]) -> Arguments:
    """The arguments after the door's name. InputError for anything that is not one of the forms above."""
    files: dict[str, str] = {}
    overrides: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        if argument in ("--help", "-h", "help"):
            return Arguments(help=True)
        name, equals, value = argument.partition("=")
        section, _, key = name.removeprefix("--").partition(".")
        if not name.startswith("--") or section not in SECTIONS or name.endswith("."):
            raise InputError(f"{argument}: {_remedy(argument, section, name, equals, value)}")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise InputError(f"{name}: a value must follow, for example {name}={_example(section, key)}")
            value = rest.pop(0)
        if not key:
            if section in files:
                raise InputError(f"{name} is given twice: {files[section]} and {value}.")
            files[section] = value
        else:
            overrides[section][key] = value
    return Arguments(files.get("config"), files.get("layout"), overrides)


def _remedy(argument: str, section: str, name: str, equals: str, value: str) -> str:
    """What to write instead of an argument that is none of ours."""
    known = "there are --config FILE, --layout FILE and overrides such as --config.steps=50 or --layout.mesh.data=4"
    if not name.startswith("--"):
        hint = f" Did you mean '--config {argument}'?" if argument.endswith(".py") else ""
        return f"not an argument; {known}.{hint}"
    close = nearest(section, SECTIONS)
    if close:
        return f"no such argument; {known}.{close}"
    return f"no such argument; {known}. Did you mean '--config.{name.removeprefix('--')}{equals}{value}'?"


def _example(section: str, key: str) -> str:
    if key:
        return "1"
    return "configs/runs/quickstart.py" if section == "config" else "configs/layouts/zero3.py"
