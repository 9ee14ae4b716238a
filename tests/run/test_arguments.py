"""The command line has two files and their dotted overrides; everything else is answered with what was meant."""

import pytest

from meshtrain.errors import InputError
from meshtrain.run.arguments import Arguments, parse


def test_files_and_overrides_in_both_spellings() -> None:
    arguments = parse(
        ["--config", "a.py", "--layout=b.py", "--config.steps=50", "--config.optimizer.learning_rate", "1e-4",
         "--layout.mesh.data=4", "--config.steps=60", "--config.data.paths=x=y", "--config.seed", "-1"]
    )  # fmt: skip
    assert arguments == Arguments(
        "a.py",
        "b.py",
        {
            "config": {"steps": "60", "optimizer.learning_rate": "1e-4", "data.paths": "x=y", "seed": "-1"},
            "layout": {"mesh.data": "4"},
        },
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_wins_over_all_else(flag: str) -> None:
    assert parse(["--config", "a.py", flag, "nonsense"]).help


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--steps=50"], ["--steps=50", "'--config.steps=50'"]),
        (["configs/runs/quickstart.py"], ["'--config configs/runs/quickstart.py'"]),
        (["--confg", "a.py"], ["--confg", "'config'"]),
        (["--layuot.mesh.data=4"], ["'layout'"]),
        (["--config"], ["--config: a value must follow", "configs/runs/quickstart.py"]),
        (["--config.steps", "--layout", "a"], ["--config.steps: a value must follow", "--config.steps=1"]),
        (["--config", "a.py", "--config", "b.py"], ["twice", "a.py", "b.py"]),
        (["--config.=3"], ["--config.=3"]),
        (["-x"], ["-x", "--config FILE"]),
    ],
)
def test_what_is_no_argument(argv: list[str], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        parse(argv)
    for word in words:
        assert word in str(error.value)
