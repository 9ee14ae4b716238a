"""What a run's folder says of the runs before this one."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.run.claim import Claim
from meshtrain.run.folder import RunFolder

MATHEMATICS: dict[str, Any] = {"seed": 1, "data": {}, "optimizer": {"schedule": {"steps": 1}}}


def test_that_the_held_out_data_is_another_is_known_once_something_was_evaluated(tmp_path: Path) -> None:
    with RunFolder(str(tmp_path)) as folder:
        assert not folder.has_evaluated_on_others(["a"])
        folder.describe({}, {}, MATHEMATICS, 0, ["a"])
    with RunFolder(str(tmp_path)) as folder:
        assert not folder.has_evaluated_on_others(["b"])  # nothing is on record yet
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
        assert not folder.has_evaluated_on_others(["a"])
        assert folder.has_evaluated_on_others(["b"])


def test_what_a_run_did_while_the_next_one_waited_for_its_lock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at the folder finds nothing; before the lock is had, another run begins and ends there."""
    real = Claim

    def late(folder: Path) -> Claim:
        (folder / "config.json").write_text(json.dumps({"is": "meshtrain run", "mathematics": MATHEMATICS}))
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')
        return real(folder)

    monkeypatch.setattr("meshtrain.run.folder.Claim", late)
    with RunFolder(str(tmp_path / "run")) as folder, pytest.raises(InputError, match=r"seed: 1 -> 2"):
        folder.refuse_other(MATHEMATICS | {"seed": 2}, False)


@pytest.mark.parametrize(
    "content",
    ['{"is": "meshtrain run"}', '{"is": "meshtrain run", "mathematics": {"data": [], "optimizer": 1}}',
     '{"is": "meshtrain run", "mathematics": {"data": {"changes": [3]}, "optimizer": {"schedule": {"steps": 1}}}}'],
)  # fmt: skip
def test_a_config_that_no_run_wrote_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match=r"config.json: not as a run wrote it"):
        RunFolder(str(tmp_path))
