"""The house rules, held by reading the source: floors, where collectives and the environment may be touched, sizes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "meshtrain"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module may import its own floor and those below. step and io stand side by side and do not know each other.
FLOORS = {
    "errors": 0, "layout": 1, "parallel": 2, "model": 3, "step": 4, "io": 4, "cost": 5, "audit": 6, "run": 7,
}  # fmt: skip
DOOR = 8

# Axis names of the shipped layouts which are not also words that the package needs for something else.
AXIS_NAMES = {"tensor", "columns", "replica", "shard"}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def floor_of(module: str) -> int:
    parts = module.split(".")
    if parts[-1] == "__main__":  # the door of a package that has its name
        return DOOR
    return FLOORS.get(parts[1], DOOR) if len(parts) > 1 else 0


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def test_imports_go_down_only() -> None:
    wrong = []
    for path in MODULES:
        here = name_of(path)
        for module, line in imports_of(path):
            if not module.startswith("meshtrain."):
                continue
            same_floor_other_room = (
                floor_of(module) == floor_of(here) < DOOR and module.split(".")[1] != here.split(".")[1]
            )
            if floor_of(module) > floor_of(here) or same_floor_other_room:
                wrong.append(f"{here}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_no_import_cycles() -> None:
    names = {name_of(path).removesuffix(".__init__"): path for path in MODULES}
    # A function's own import is lazy: it cannot close a cycle at import time, but the rule is for every import.
    graph = {
        name: {m for m, _ in imports_of(path) if m in names and path.name != "__init__.py"}
        for name, path in names.items()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        (r"\b(shard_map|ppermute|psum|psum_scatter|all_gather|all_to_all|ragged_all_to_all|axis_index)\(", "parallel/"),
        (r"\bos\.environ\b|\bgetenv\b", "run/"),
        (r"\bjax\.(local_)?devices\(", "run/ layout/mesh.py layout/placement.py"),
        (r"\bml_collections\b", "run/config.py"),
        (r"https?://(?!arxiv\.org|github\.com|doi\.org)", ""),
        (r"/(work|home|root|Users)/", ""),
    ],
)
def test_touched_only_where_it_belongs(pattern: str, allowed: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in MODULES
        if not any(str(path.relative_to(PACKAGE)).startswith(place) for place in allowed.split())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, "\n".join(found)


def test_no_mesh_axis_is_named() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in AXIS_NAMES
    ]
    assert not found, "\n".join(found)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_files_and_functions_stay_small() -> None:
    large = []
    for path in MODULES:
        text = path.read_text()
        limit = 20 if path.name == "__init__.py" else 100 if path.parent == PACKAGE or path.stem == "__main__" else 400
        if len(text.splitlines()) > limit:
            large.append(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines, at most {limit}")
        for node in functions(ast.parse(text)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > 65 and not (path.parent.name == "run" and path.name == "loop.py"):
                large.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines, at most 65")
    assert not large, "\n".join(large)


def test_every_module_says_what_it_is() -> None:
    silent = [str(path.relative_to(ROOT)) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]
    vague = [
        str(p.relative_to(ROOT)) for p in MODULES if p.stem in {"utils", "common", "helpers", "misc", "base", "types"}
    ]
    assert not silent + vague


def test_top_level_is_what_it_should_be() -> None:
    expected = {
        "pyproject.toml", "constraints.txt", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE",
        "meshtrain", "configs", "tests", "scripts",
    }  # fmt: skip
    ignored = {"runs", "corpora", "build", "meshtrain.egg-info", "__pycache__"}
    assert {p.name for p in ROOT.iterdir() if not p.name.startswith(".")} - ignored == expected


def test_layout_files_are_short_and_say_when_to_use_them() -> None:
    for path in sorted((ROOT / "configs" / "layouts").glob("*.py")):
        text = path.read_text()
        doc = ast.get_docstring(ast.parse(text)) or ""
        assert "Use it" in doc or "published" in doc, f"{path.name}: the docstring does not say when to use it"
        assert len(text.splitlines()) <= 30, f"{path.name}: {len(text.splitlines())} lines"
