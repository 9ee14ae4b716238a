"""Config files by path: what they may import, what overrides do, and whose line an error shows."""

from pathlib import Path

import pytest

from meshtrain.errors import InputError
from meshtrain.run import config_file


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_run_imports_its_neighbours_from_its_own_root(tmp_path: Path) -> None:
    for root, width in (("one", 1), ("two", 2)):
        tree(
            tmp_path / root,
            {
                "configs/models/small.py": f"def get_config():\n    return dict(width={width})\n",
                "configs/runs/mine.py": '"""Doc."""\nfrom ml_collections import ConfigDict\n'
                "from configs.models import small\n\ndef get_config():\n"
                "    return ConfigDict(dict(model=small.get_config(), steps=3))\n",
            },
        )
    for root, width in (("one", 1), ("two", 2), ("one", 1)):  # no module of another root is left over
        file = config_file.read(str(tmp_path / root / "configs/runs/mine.py"), "--config")
        assert file.values == {"model": {"width": width}, "steps": 3}
        assert type(file.values["model"]) is dict
        assert (file.doc, file.root) == ("Doc.", tmp_path / root)


def test_overrides_replace_and_add_and_leave_the_rest() -> None:
    values = {"mesh": {"data": -1}, "pipeline": None, "remat": "none"}
    changed = config_file.override(values, {"mesh.data": 4, "mesh.tensor": 2, "pipeline.stages": 2}, "layout")
    assert changed == {"mesh": {"data": 4, "tensor": 2}, "pipeline": {"stages": 2}, "remat": "none"}
    assert values == {"mesh": {"data": -1}, "pipeline": None, "remat": "none"}
    with pytest.raises(InputError, match=r"layout\.remat\.full: layout\.remat is 'none', not a section"):
        config_file.override(values, {"remat.full": 1}, "layout")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def get_config():\n    width = 3\n    return widht\n", ["mine.py, line 3: NameError", "return widht"]),
        ("import nonsense_module\n", ["mine.py, line 1: ModuleNotFoundError", "import nonsense_module"]),
        ("def get_config(:\n", ["mine.py, line 1: SyntaxError", "def get_config(:"]),
        ("x = 1\n", ["no function get_config()"]),
        ("def get_config():\n    return 3\n", ["returned int"]),
        ("raise SystemExit(3)\n", ["line 1: SystemExit"]),
        (
            "from ml_collections import ConfigDict\n\ndef get_config():\n    c = ConfigDict(dict(a=1)).lock()\n"
            "    c.b = 2\n    return c\n",
            ["line 5", "c.b = 2"],
        ),
    ],
)
def test_a_file_that_fails_shows_its_own_line(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tree(tmp_path, {"configs/runs/mine.py": text}) / "configs/runs/mine.py"
    with pytest.raises(InputError) as error:
        config_file.read(str(path), "--config")
    for word in [f"--config={path}", *words]:
        assert word in str(error.value)
    assert "meshtrain/run" not in str(error.value)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    tree(tmp_path, {"quickstart.py": "", "llama.py": ""})
    with pytest.raises(InputError, match=r"there is no such file\. Did you mean '.*quickstart\.py'"):
        config_file.read(str(tmp_path / "quikstart.py"), "--config")
    with pytest.raises(InputError, match=r"Files there: .*llama\.py, .*quickstart\.py"):
        config_file.read(str(tmp_path / "zzzzzzzzzzz"), "--config")
    with pytest.raises(InputError, match="it is a folder"):
        config_file.read(str(tmp_path), "--config")
