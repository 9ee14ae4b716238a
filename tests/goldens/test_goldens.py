"""The `show` reports are those that were last reviewed; `python scripts/refresh_goldens.py` writes them anew."""

import difflib

from tests.goldens.cases import FOLDER, golden_files


def test_reports_are_the_reviewed_ones() -> None:
    wanted = {path: text + "\n" for path, text in golden_files()}
    assert set(FOLDER.glob("*.txt")) == set(wanted), "files are missing or left over: python scripts/refresh_goldens.py"
    for path, text in wanted.items():
        change = difflib.unified_diff(
            path.read_text().splitlines(), text.splitlines(), "reviewed", "now", lineterm="", n=1
        )
        lines = list(change)
        assert not lines, f"{path.name} changed:\n" + "\n".join(lines[:60])
