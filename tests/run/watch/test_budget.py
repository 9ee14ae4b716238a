"""Budgets: learned from the run, never below the floor, and none is known before a few have been seen."""

import re
from pathlib import Path

import pytest

from meshtrain.errors import Exit, InputError
from meshtrain.run.watch import COMPILE, STEP, WatchConfig
from meshtrain.run.watch.budget import Budgets
from meshtrain.train import help_text

ROOT = Path(__file__).parents[3]


def test_a_budget_is_a_multiple_of_the_usual_with_a_floor() -> None:
    budgets = Budgets(WatchConfig(floor=100, factor=10, start=3000, lost=20))
    assert budgets.seconds(STEP) == 3000
    for seconds in (700.0, 1.0, 1.2):  # the first step is slow
        budgets.learn(STEP, seconds)
    assert budgets.seconds(STEP) == 100
    for _ in range(10):
        budgets.learn(STEP, 40.0)
    assert budgets.seconds(STEP) == 400
    budgets.learn(COMPILE, 1.0)
    assert budgets.seconds(COMPILE) == 3000


@pytest.mark.parametrize(
    ("values", "words"),
    [({"floor": 0}, "watch.floor"), ({"lost": 300}, "less than watch.floor=300"), ({"start": -1}, "watch.start")],
)
def test_budgets_that_cannot_work_are_refused(values: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        WatchConfig(**values)  # type: ignore[arg-type]


def test_the_help_names_every_exit_code() -> None:
    text = help_text()
    for code in Exit:
        assert f"  {code.value:<4} {code.meaning}" in text


def test_the_readme_lists_the_exit_codes_as_they_are() -> None:
    table = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "README.md").read_text().partition("| exit code |")[2], re.M)
    assert not table or dict(table[: len(Exit)]) == {str(code.value): code.meaning for code in Exit}
