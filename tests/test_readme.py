"""What README, CONTRIBUTING and CHANGELOG name is there: files, doors and their flags, config keys, layouts, dims."""

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from meshtrain.layout import Layout
from meshtrain.layout.dims import DIMS
from meshtrain.layout.layout import REMAT
from meshtrain.run.config import RunConfig
from meshtrain.run.schema import leaves

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
README = PAGES["README.md"]

DOORS = {path.stem: path for path in (ROOT / "meshtrain").glob("[!_]*.py") if path.stem != "errors"}
DOORS["audit"] = ROOT / "meshtrain/audit/__main__.py"

NOT_FURTHER = ("mesh", "rules", "activations", "params", "grads", "optimizer", "name", "doc")  # keys of a layout

KEYS = {key for key, _, _ in leaves(RunConfig, "config")}
SECTIONS = {key.split(".")[1] for key in KEYS if key.count(".") > 1}
KEYS |= {f"config.{section}" for section in SECTIONS}


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def commands(page: str) -> list[tuple[str, str]]:
    """(door, arguments) of each command of a page, whole where it is on several lines."""
    page = re.sub(r"\\\n\s*", "", page)
    page = re.sub(r"(?<!`)`[^`]+`", lambda code: code[0].replace("\n", " "), page)
    return re.findall(r"python -m meshtrain\.(\w+)([^`\n]*)", page)


def names(flags: Mapping[str, Any]) -> Iterator[str]:
    """Of the flags of a door, or of each of its actions."""
    for name, kind in flags.items():
        yield from names(kind) if isinstance(kind, dict) else [name]


@pytest.mark.parametrize("page", PAGES)
def test_paths(page: str) -> None:
    text = re.sub(r"/\n\s*", "/", PAGES[page])
    paths = re.findall(r"(?<![\w/.])(?:configs|scripts|tests|meshtrain)/[\w/.*-]*[\w*]", text)
    rooms = re.findall(r"`((?:layout|parallel|model|step|io|cost|audit|run)/.*?)`", text)
    paths += [f"meshtrain/{path}" for path in rooms]
    assert [path for path in paths if not any(ROOT.glob(path.rstrip("/")))] == []


def test_links() -> None:
    titles = re.findall(r"^#+ (.+)$", README, re.M)
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    found = re.findall(r"\]\(#(.+?)\)", README)
    assert found
    assert set(found) <= anchors


def test_doors_and_their_flags() -> None:
    found = [command for page in PAGES.values() for command in commands(page)]
    assert {door for door, _ in found} == set(DOORS)
    for door, arguments in found:
        known = flags_in(DOORS[door].read_text()) | {"--config", "--layout", "--help"}
        assert flags_in(arguments) <= known, f"{door}{arguments}"


@pytest.mark.parametrize("door", ["audit.__main__", "convert", "launch", "plan", "prove", "show"])
def test_help_names_every_flag(door: str) -> None:
    module = importlib.import_module(f"meshtrain.{door}")
    flags = {f"--{name.replace('_', '-')}" for name in names(module.FLAGS)} - {"--help"}
    assert flags - flags_in(str(module.__doc__)) == set()


def test_keys_of_a_run() -> None:
    sections = "|".join(SECTIONS - {"model"})  # names of weights in Hugging Face folders begin so, too
    for page, text in PAGES.items():
        keys = re.findall(r"(?<![\w/.])(?:--)?config\.[a-z_.]*[a-z_]", text)
        keys += [f"config.{key}" for key in re.findall(rf"(?<![\w/.])(?:{sections})\.[a-z_.]*[a-z_]", text)]
        assert {key.removeprefix("--") for key in keys} - KEYS <= {"config.json"}, page


def test_layouts_and_dims() -> None:
    table = README.partition("## Layouts")[2].partition("\n\nThe classes")[0]
    patterns = re.findall(r"`([\w*]+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    for path in (ROOT / "configs/layouts").glob("*.py"):
        assert any(fnmatch(path.stem, pattern) for pattern in patterns), path
    words = " ".join(README.split())
    keys = words.partition("Further keys: ")[2].partition(". ")[0]
    assert {field.name for field in fields(Layout)} - {*NOT_FURTHER} == set(re.findall(r"`(\w+)`", keys)) - {*REMAT}
    assert f"The dims are `{' '.join(DIMS)}`" in words


def test_targets_of_make() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for page, text in PAGES.items():
        assert set(re.findall(r"(?:`|^ {4})make (\w+)", text, re.M)) <= set(targets), page
