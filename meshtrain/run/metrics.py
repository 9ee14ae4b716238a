"""The run's numbers on disk: `metrics.jsonl` (one flat JSON object per step or evaluation) and TensorBoard files.

One record per step over the whole run, however often it was resumed: what lies beyond the restored step is cut off
before training goes on. A log that cannot be written is said once and never stops training; lines wait in memory.
"""

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshtrain.errors import StorageError
from meshtrain.io import disk

METRICS = "metrics.jsonl"

Number = float | int | list[float] | None  # a list is in the records alone, on no board


class Metrics:
    """Writes records. `restored_step`: the step that training goes on from (0 for a new run).

    writes: whether this is the run's process that writes them; with the others, all that is written is dropped.
    """

    def __init__(
        self,
        folder: Path,
        restored_step: int,
        say: Callable[[str], None],
        tensorboard: bool = True,
        writes: bool = True,
    ) -> None:
        self.path = folder / METRICS
        self._say, self._waiting, self._failing, self._writes = say, b"", False, writes
        self._end = cut_after(self.path, restored_step) if writes else 0
        self._board = _Board(folder / "tensorboard", restored_step, say) if tensorboard and writes else None

    def write(self, record: Mapping[str, Number]) -> None:
        """One record; numbers that are not finite become null. Returns without waiting for the disk to sync."""
        if not self._writes:
            return
        finite = {key: _finite(value) for key, value in record.items()}
        self._waiting += json.dumps(finite, allow_nan=False).encode() + b"\n"
        self._flush()
        if self._board is not None:
            self._board.write(record)

    def has_evaluation(self, step: int) -> bool:
        """Whether the evaluation after `step` is on record."""
        return any(record["step"] == step and "eval_loss" in record for record in read(self.path))

    def close(self) -> None:
        """Writes what waits, and says so if that fails."""
        if self._writes:
            self._flush()
        if self._waiting:
            self._say(f"{self.path}: {self._waiting.count(chr(10).encode())} records could not be written")
        if self._board is not None:
            self._board.close()

    def _flush(self) -> None:
        """Appends what waits; a write that failed half way is undone, so that no line is ever torn."""
        try:
            with open(self.path, "r+b" if self.path.exists() else "wb", buffering=0) as file:
                try:
                    file.seek(self._end)
                    left = memoryview(self._waiting)
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    file.truncate(self._end)
                    raise
            self._end += len(self._waiting)
            self._waiting = b""
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._say(f"{self.path} cannot be written ({error}); its records wait in memory")
            self._failing = True


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, oldest first; a torn last line, and what is no record, is left out.

    StorageError where there is a file and it cannot be read.
    """
    records = []
    for line in _content(path).split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line.strip(b"\0"))  # zeros: what some file systems leave where the power went
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                records.append(record)
    return records


def cut_after(path: Path, step: int) -> int:
    """Removes the records of later steps, and a torn last line, by an atomic replacement. Returns the file's size.

    StorageError where it cannot be read or replaced.
    """
    if not path.exists():
        return 0
    kept = [record for record in read(path) if record["step"] <= step]
    text = "".join(json.dumps(record) + "\n" for record in kept).encode()
    if text != _content(path):
        try:
            disk.replace(path, text)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from None
    return len(text)


def _content(path: Path) -> bytes:
    """The bytes of a file, none where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from None


def _finite(value: Any) -> Any:
    """A number, or a list of them, with None in the place of each that is not finite."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Board:
    """TensorBoard's event file, written in this thread: the usual background queue would block on a full disk."""

    def __init__(self, folder: Path, restored_step: int, say: Callable[[str], None]) -> None:
        self._folder, self._restored, self._say = folder, restored_step, say
        self._writer: Any = None
        self._broken = False

    def write(self, record: Mapping[str, Number]) -> None:
        if self._broken:
            return
        try:
            self._event(record)
        except Exception as error:  # whatever the logger does, training goes on
            self.close()
            self._broken = True
            self._say(f"TensorBoard files stop here: {error}")

    def _event(self, record: Mapping[str, Number]) -> None:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2, summary_pb2

        step = record["step"]
        assert isinstance(step, int)
        if self._writer is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = event_file_writer.EventsWriter(str(self._folder / "events"))
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(event_pb2.Event(step=self._restored + 1, session_log=start))  # hides what is done again
        values = [
            value
            for key, number in record.items()
            if key != "step" and number is not None and not isinstance(number, list)
            for value in summary.scalar(key, float(number)).value
        ]
        self._write(event_pb2.Event(step=step, summary=summary_pb2.Summary(value=values)))
        self._writer.flush()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write_event(event)

    def close(self) -> None:
        if self._writer is not None and not self._broken:
            with contextlib.suppress(Exception):  # a full disk again
                self._writer.close()
