"""Config files: plain Python with `get_config()`, run by path, and dotted overrides laid over what they return.

While a file runs, the folder that holds its `configs/` is importable, so that a run can say `from configs.models import
tiny`. What goes wrong in a file is shown as the file's own line, without a trace of ours.
"""

import contextlib
import linecache
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, nearest
from meshtrain.io.home import expanded


@dataclass(frozen=True)
class ConfigFile:
    """What a config file says: its nested dict and its docstring. `root` is the folder that holds `configs/`."""

    path: Path
    values: dict[str, Any]
    doc: str
    root: Path


def read(path: str, flag: str) -> ConfigFile:
    """Runs a config file. `flag` is the argument that named it, for errors (InputError)."""
    file = expanded(path, flag)
    if not file.is_file():
        siblings = [other.name for other in file.parent.glob("*.py")] if file.parent.is_dir() else []
        there = "it is a folder, not a file" if file.is_dir() else "there is no such file"
        listed = f" Files there: {', '.join(sorted(siblings))}." if siblings else ""
        raise InputError(f"{flag}={path}: {there}.{nearest(file.name, siblings) or listed}")
    root = _root(file)
    with _importable(root):
        try:
            module = runpy.run_path(str(file))
            if not callable(module.get("get_config")):
                raise InputError(f"{flag}={path}: it defines no function get_config(), which must return a ConfigDict.")
            values = module["get_config"]()
            values = _in_order(values)
        except InputError:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise InputError(f"{flag}={path}: {_own_line(error, root)}") from None
    if not isinstance(values, Mapping):
        raise InputError(f"{flag}={path}: get_config() returned {type(values).__name__}, not a ConfigDict or a dict.")
    return ConfigFile(file, _plain(values), (module.get("__doc__") or "").strip(), root)


def override(values: dict[str, Any], overrides: Mapping[str, Any], section: str) -> dict[str, Any]:
    """`values` with each dotted key replaced (or added: whoever reads the dict knows which keys there are)."""
    values = _plain(values)
    for dotted, value in overrides.items():
        *parents, last = dotted.split(".")
        place = values
        for depth, name in enumerate(parents):
            inner = place.get(name)
            if inner is None:
                inner = place[name] = {}
            if not isinstance(inner, dict):
                raise InputError(
                    f"{section}.{dotted}: {section}.{'.'.join(parents[: depth + 1])} is {inner!r}, not a section."
                )
            place = inner
        place[last] = value
    return values


def _in_order(values: Any) -> Any:
    """A ConfigDict as nested dicts in the order of the file: it sorts its keys, and mesh axes have an order."""
    if not hasattr(values, "to_dict"):
        return values
    return {key: _in_order(values[key]) for key in values._fields}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy with ordinary dicts."""
    return {str(key): _plain(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def _root(file: Path) -> Path:
    """The folder that holds the `configs/` that this file is in, or else the file's own folder."""
    for folder in file.resolve().parents:
        if folder.name == "configs":
            return folder.parent
    return file.resolve().parent


@contextlib.contextmanager
def _importable(root: Path) -> Iterator[None]:
    """`root` first on the import path, with no `configs` left over from another root, before or after."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "configs"}
    sys.path.insert(0, str(root))
    try:
        yield
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
            del sys.modules[name]
        sys.modules.update(before)


def _own_line(error: BaseException, root: Path) -> str:
    """Where in the user's files an error came from: `configs/runs/mine.py, line 7: KeyError: 'x'` and the line."""
    what = f"{type(error).__name__}: {error}".strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {what}\n    {(error.text or '').strip()}"
    package = Path(__file__).resolve().parents[1]
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if (file := Path(frame.filename).resolve()).is_relative_to(root)
        and not file.is_relative_to(package)
        and "site-packages" not in file.parts
    ]
    if not own:
        return what
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    return f"{own[-1].filename}, line {own[-1].lineno}: {what}" + (f"\n    {line}" if line else "")
