"""The page as a file: whole in itself, small at any size, safe with any name, labelled in both languages."""

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from meshtrain.cost import decisions, memory
from meshtrain.errors import InputError
from meshtrain.layout.inventory import KINDS
from meshtrain.parallel.pipeline import schedule
from meshtrain.plan import main
from meshtrain.run.page import check_target, render, write_page
from meshtrain.run.page.schedule import MOST_OPS, cells
from meshtrain.run.page.words import WORDS
from meshtrain.run.page.write import FOLDER, SCRIPTS, STYLES, as_script
from tests.run.page import pages

# Kinds of words that the planner's own words are looked up under.
PASSED_ON = {
    "part", "what", "cause", "question", "severity", "role", "sentence", "said", "link", "kind_of_array",
}  # fmt: skip
CODE = {path.name: path.read_text() for path in sorted((FOLDER / "script").glob("*.js"))}


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = render(pages.data("dense"))
    assert not re.findall(r"https?:|//[a-z]+\.|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")| src=", text)
    assert "default-src 'none'" in text


def test_every_file_is_used_and_short() -> None:
    assert {path.stem for path in (FOLDER / "script").iterdir()} == set(SCRIPTS)
    assert {path.stem for path in (FOLDER / "style").iterdir()} == set(STYLES)
    for path in (*FOLDER.glob("s*/*"), FOLDER / "page.html"):
        text = path.read_text()
        assert len(text.splitlines()) <= 200, path.name
        assert max(map(len, text.splitlines())) <= 140, path.name
        assert text.lstrip().startswith(("//", "/*", "{#-")), f"{path.name} does not say what it is"


def test_every_file_is_packaged() -> None:
    settings = tomllib.loads((pages.CONFIGS.parent / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["meshtrain.run.page"]
    packaged = {path for pattern in patterns for path in FOLDER.glob(pattern)}
    assert packaged == {path for path in FOLDER.rglob("*.*") if path.suffix in (".html", ".css", ".js")}


def test_every_label_has_both_languages() -> None:
    """Every key that the code asks for, and every word of the planner that it passes on."""
    asked = {key for text in CODE.values() for key in re.findall(r'"([a-z_]+\.[a-z_]+)"', text)}
    asked |= {f"{name}.{part}" for name in _sections() for part in ("title", "short", "lead")}
    asked |= {f"part.{name}" for name in _parts()} | {f"what.{what}" for what in _whats()}
    asked |= {f"question.{title}" for title in _titles()} | {f"kind_of_array.{kind}" for kind in KINDS}
    assert asked <= set(WORDS), sorted(asked - set(WORDS))
    for key, (english, korean) in WORDS.items():
        assert english.strip(), key
        assert korean.strip(), key
        names = re.findall(r"\{\w+\}", english)
        assert sorted(names) == sorted(re.findall(r"\{\w+\}", korean)), key
        same = english == korean and re.search(r"[a-z]{3}", re.sub(r"\{\w+\}", "", english))
        assert not same or key in ("what.float32", "tensor.exchange"), f"{key} is not translated"


def _sections() -> list[str]:
    found = re.search(r"for name in \(([^)]*)\)", (FOLDER / "page.html").read_text())
    assert found
    return re.findall(r'"(\w+)"', found[1])


def _calls(module: Any, *names: str) -> list[ast.Call]:
    tree = ast.parse(Path(module.__file__).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) in names]


def _parts() -> set[str]:
    found = {call.args[0].value for call in _calls(memory, "Part") if isinstance(call.args[0], ast.Constant)}
    assert {"optimizer state", "layer"} <= found
    return {str(name) for name in found}


def _whats() -> set[str]:
    words = [word.value for call in _calls(memory, "Part") for word in call.keywords if word.arg == "what"]
    return {str(word.value) for word in words if isinstance(word, ast.Constant)}


def _titles() -> set[str]:
    texts = {
        str(one.value)
        for call in _calls(decisions, "_close", "_add", "Decision")
        for one in call.args
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and one.value[:1].isupper()
    }
    assert "Does all of it fit one GPU?" in texts
    return texts


def test_the_planner_is_understood() -> None:
    """Its sentences have a form that the page can tell in the other language."""
    forms = [english for key, (english, _) in WORDS.items() if key.startswith("sentence.")]
    patterns = ["(.+?)".join(map(re.escape, re.split(r"\{\w+\}", form))) for form in forms]
    for decision in pages.outcome().decisions:
        for sentence in decision.found:
            assert any(re.fullmatch(pattern, sentence) for pattern in patterns), sentence


def test_no_label_is_left_over() -> None:
    text = "\n".join(CODE.values()) + (FOLDER / "page.html").read_text()
    built = [
        re.compile(re.sub(r"\\\$\\\{.*?\\\}", "(.+)", re.escape(key)))
        for key in re.findall(r"`([\w.]*(?:\$\{[^}]*\}[\w.]*)+)`", text)
    ]

    def asked(key: str) -> bool:
        if f'"{key}"' in text or key.partition(".")[0] in PASSED_ON or key.endswith((".title", ".lead")):
            return True
        found = [match for pattern in built if (match := pattern.fullmatch(key))]
        return any(all(re.search(rf"\b{part}\b", text) for part in match.groups()) for match in found)

    assert not [key for key in WORDS if not asked(key)]


def test_names_of_the_user_stay_text() -> None:
    evil = "</script><img src=x onerror=alert(1)>&\u2028"
    assert re.search(r"[<>&\u2028]", as_script({"layout": evil})) is None
    assert json.loads(as_script({"layout": evil})) == {"layout": evil}
    found = pages.data("dense")
    text = render(found | {"run": found["run"] | {"layout": evil}})
    assert "<img" not in text
    assert "onerror=alert(1)&gt;" in text  # the title, escaped


def test_stages_are_those_of_the_planner() -> None:
    section = pages.data("dense")["memory"]
    assert [bar["stage"] for bar in section["bars"]] == [0, 1, 2, 3]
    assert [bar["given"] for bar in section["bars"]] == [False, False, False, True]
    report = pages.plan("dense")
    assert section["bars"][3]["peak"] == report.memory.peak
    kept = [bar["peak"] for bar in section["bars"]]
    assert kept[0] > kept[1] > kept[3]


def test_a_long_table_is_cut_where_a_column_ends() -> None:
    table = schedule("1f1b", 8, 512)
    found = cells(table)
    drawn = len(found["ops"]) // 5
    assert found["num_columns"] == table.num_ticks > len(found["ticks"])
    assert MOST_OPS - 8 < drawn <= MOST_OPS
    assert max(found["ops"][1::5]) == len(found["ticks"]) - 1
    whole = cells(schedule("zb_h1", 4, 8))
    assert len(whole["ops"]) == 5 * 3 * 4 * 8
    assert whole["num_columns"] == len(whole["ticks"])


def test_a_door_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.html"
    run, cluster = pages.CONFIGS / "runs/llama3_8b.py", pages.CONFIGS / "clusters/h100_roce.py"
    arguments = ["--config", str(run), "--cluster", str(cluster), "--gpus", "16", "--config.model.num_layers=2"]
    assert main([*arguments, "--html", str(target), "--json"]) == 0
    said = capsys.readouterr()
    assert str(target) in said.err
    assert json.loads(said.out)["best"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "Order of decisions" in target.read_text()
    assert main([*arguments, "--html", str(target), "--serving"]) == 2
    assert "leave --serving out" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "says"), [("no/report.html", "there is no folder"), (".", "this is a folder")])
def test_a_place_that_cannot_be(path: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        check_target(str(tmp_path / path))
    with pytest.raises(InputError, match=says):
        write_page(str(tmp_path / path), pages.data("dense"))
