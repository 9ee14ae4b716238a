"""The page as a file: the template with styles, scripts, words and data put into it, so that it needs nothing else.

Texts of the user (names of layouts, axes, paths) stand in the data alone, as JSON that cannot end its script element,
and the scripts put them into the page as text, never as markup.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshtrain.errors import InputError, StorageError
from meshtrain.layout.words import size_text
from meshtrain.run.page.words import WORDS

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
STYLES = ("base", "layout", "chart", "table", "print")
SCRIPTS = (
    "page", "format", "chart", "headline", "memory", "time", "decisions", "devices", "holders", "groups",
    "tensor_parallel", "pipeline", "balance", "ledger", "notes", "start",
)  # fmt: skip


def check_target(path: str) -> None:
    """InputError where no file can be written there; asked before anything is worked out."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise InputError(f"--html={path}: this is a folder; --html {target / 'report.html'} would work.")
    if not folder.is_dir():
        raise InputError(f"--html={path}: there is no folder {folder}; make it first (mkdir -p {folder}).")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--html={path}: the folder {folder} cannot be written to.")


def write_page(path: str, data: dict[str, Any]) -> None:
    """Writes the page, whole or not at all, and says so on standard error. InputError as `check_target`; StorageError
    where the disk refuses."""
    check_target(path)
    text = render(data).encode()
    target = Path(path)
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        new.write_bytes(text)
        new.replace(target)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise StorageError(f"--html={path}: {error.strerror or error}.") from None
    print(f"page: {path} ({size_text(len(text))})", file=sys.stderr)


def render(data: dict[str, Any]) -> str:
    """The whole page as HTML."""
    from markupsafe import Markup

    words = {language: {key: both[i] for key, both in WORDS.items()} for i, language in enumerate(("en", "ko"))}
    template = _environment().get_template("page.html")
    return str(
        template.render(
            title=f"{data['run']['layout']} · {data['run']['num_devices']:,} x {data['run']['gpu']}",
            styles=[Markup(_text("style", name, "css")) for name in STYLES],
            scripts=[Markup(_text("script", name, "js")) for name in SCRIPTS],
            words=Markup(as_script(words)),
            data=Markup(as_script(data)),
            word=lambda key: WORDS[key][0],
        )
    )


def as_script(value: Any) -> str:
    """JSON for a script element: no text in it can close the element or open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=float)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True)


@cache
def _text(kind: str, name: str, ending: str) -> str:
    return (FOLDER / kind / f"{name}.{ending}").read_text(encoding="utf-8")
