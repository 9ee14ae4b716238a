"""The run's folder: everything of a run lives here, and nothing of another one is ever overwritten.

    config.json layout.json     the resolved run and layout, and the mathematics that a resume is compared with
    metrics.jsonl tensorboard/  the numbers
    checkpoints/ profile/       the states; XLA traces

A folder is one run's while it trains; what a start was asked for replaces the files of the start before it.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, StorageError
from meshtrain.io import disk
from meshtrain.io.checkpoint_folder import refuse_pattern
from meshtrain.io.home import expanded
from meshtrain.run.claim import LOCK, Claim
from meshtrain.run.config import differences
from meshtrain.run.metrics import METRICS
from meshtrain.run.watch.heartbeat import WATCH

MARK = "meshtrain run"
CONFIG, LAYOUT = "config.json", "layout.json"
_FRESH = {LOCK, WATCH, CONFIG + ".new", LAYOUT, LAYOUT + ".new"}  # what a start that was killed at once may leave


class RunFolder:
    """A claimed folder: no other run trains in it until this one ends."""

    def __init__(self, workdir: str, writes: bool = True) -> None:
        """Claims `workdir`. InputError where it holds something else, StorageError where it cannot be written.

        writes: whether this is the run's process that claims and describes it; the others only know where it is.
        """
        self.path = expanded(workdir, "config.workdir")
        refuse_pattern(self.path)
        self.checkpoints, self.profile = self.path / "checkpoints", self.path / "profile"
        self._stored: dict[str, Any] | None = None
        self._claim: Claim | None = None
        if not writes:
            return
        with _writing(self.path):
            self._identify()  # nothing is made in what belongs to something else
            self.path.mkdir(parents=True, exist_ok=True)
            self._claim = Claim(self.path)
            self._stored = self._identify()  # by whoever may have held it until now

    def refuse_other(self, mathematics: dict[str, Any], with_contents: bool, rows: int = 0) -> None:
        """InputError, with the list of differences, where what was trained here is not this run.

        A folder without a step or a checkpoint holds nothing to protect. `with_contents`: whether the content of the
        data is known already and compared. rows: how far the run has read its data, where that is known: a mixture may
        be changed beyond that.
        """
        if self._stored is None or not self._has_progress():
            return
        different = differences(self._stored["mathematics"], mathematics)
        if not with_contents:
            different = [line for line in different if not line.startswith(("data.contents", "data.changes"))]
        elif _changes(self._stored["mathematics"], rows) == _changes(mathematics, rows):
            different = [line for line in different if not line.startswith("data.changes")]
        if different:
            hint = ""
            if any(line.startswith("optimizer.schedule.steps:") for line in different):
                end = self._stored["mathematics"]["optimizer"]["schedule"]["steps"]
                hint = f"The learning rate's way to step {end} is kept by --config.optimizer.schedule.steps={end}.\n"
            raise InputError(
                f"config.workdir={self.path} holds another run; it differs in what changes the numbers (old -> new):\n"
                + "".join(f"    {line}\n" for line in different)
                + hint
                + "Go on with the old values, or start anew in another folder: --config.workdir=..."
            )

    def has_evaluated_on_others(self, held_out: Sequence[str]) -> bool:
        """Whether the losses on record may be of other held-out data than these (fingerprints)."""
        before = self._stored.get("held_out") if self._stored is not None and self._has_progress() else None
        return before is not None and before != list(held_out)

    def describe(
        self,
        config: dict[str, Any],
        layout: dict[str, Any],
        mathematics: dict[str, Any],
        rows: int = 0,
        held_out: Sequence[str] = (),
    ) -> None:
        """Stores what this start, which goes on from `rows` rows, was asked for; StorageError where there is no room.

        That a mixture is changed from now on is kept, with all such decisions before it.
        """
        if self._claim is None:
            return
        with _writing(self.path):
            self._claim.check()
        decisions = self._stored.get("decisions", []) if self._stored is not None else []
        old, new = (_changes(m) for m in (self._stored["mathematics"] if self._stored is not None else {}, mathematics))
        if self._stored is not None and old != new:
            decisions = [*decisions, {"time": time.time(), "rows": rows, "data.changes": [old, new]}]
        _write(self.path / LAYOUT, layout)
        stored = {"is": MARK, "config": config, "mathematics": mathematics, "decisions": decisions}
        stored["held_out"] = list(held_out)
        _write(self.path / CONFIG, stored)

    def _identify(self) -> dict[str, Any] | None:
        """What config.json says; None for a new folder."""
        if self.path.is_dir():
            names = sorted(path.name for path in self.path.iterdir())
        elif self.path.exists():
            raise InputError(f"config.workdir={self.path} is a file; name a folder, for example {self.path}.run.")
        else:
            names = []
        if not set(names) - _FRESH:
            return None
        stored: Any = None
        with contextlib.suppress(FileNotFoundError, IsADirectoryError, ValueError, RecursionError):
            stored = json.loads((self.path / CONFIG).read_bytes())
        if isinstance(stored, dict) and stored.get("is") == MARK:
            _refuse_edited(self.path / CONFIG, stored)
            return stored
        raise InputError(
            f"config.workdir={self.path} belongs to something else: it has no {CONFIG} of a run, but holds"
            f" {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}. Name a new or empty folder."
        )

    def _has_progress(self) -> bool:
        metrics = self.path / METRICS
        return (metrics.exists() and metrics.stat().st_size > 0) or any(self.checkpoints.glob("step_*"))

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        if self._claim is not None:
            with contextlib.suppress(OSError):
                self._claim.release()


def _changes(mathematics: dict[str, Any], rows: int | None = None) -> list[Any]:
    """The changes of the mixture; with `rows`, those that hold for rows before that."""
    found = mathematics.get("data", {}).get("changes") or []
    return [list(change) for change in found if rows is None or change[0] < rows]


def _refuse_edited(path: Path, stored: dict[str, Any]) -> None:
    """InputError where what a resume is compared with is not as a run writes it."""
    try:
        mathematics = stored["mathematics"]
        _ = mathematics["optimizer"]["schedule"]["steps"], _changes(mathematics, 0), [*stored.get("decisions", [])]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"{path}: not as a run wrote it ({type(error).__name__}: {error}), so it cannot be told whether this is the"
            " same run. Bring the file back, or name another folder."
        ) from None


def _write(path: Path, values: dict[str, Any]) -> None:
    """Replaces a JSON file, whole or not at all."""
    with _writing(path.parent):
        disk.replace(path, (json.dumps(values, indent=1) + "\n").encode())


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(
            f"config.workdir={folder} cannot be written: {reason}. Make room or permission, or name another folder."
        ) from None
