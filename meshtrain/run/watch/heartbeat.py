"""Signs of life in the run's folder: a small file of each process, rewritten all the time, and one verdict for all.

    .watch/START/process-00001.json     where that process is: beat, step, phase, since when, host, pid
    .watch/START/verdict.json           why this start ends: made once, by whoever finds out first
    .watch/START/stacks-00001.txt       what each process was doing then

Files of a shared folder need no living peer: they can be read when the first process is the one that is gone. They get
their size at the start and are overwritten in place, so a disk that is full later silences nobody. A beat is compared
with the reader's own clock only, so clocks of hosts need not agree.
"""

import contextlib
import functools
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WATCH = ".watch"
VERDICT = "verdict.json"
SIZE = 4096  # bytes of a file
LOOK = 12.0  # seconds in which a living process gives two signs of life, and is seen to
KEPT = 3  # starts whose files stay, for whoever looks for the reason later


@dataclass(frozen=True)
class Beat:
    """A process at one moment. beat: counts up while it lives. seconds: in this phase so far. machine: equal where two
    processes see each other. host_seconds, data_seconds: of the `steps` of this start, on its host, waiting for data.
    """

    process: int
    beat: int
    step: int
    phase: str
    seconds: float
    host: str
    machine: str
    pid: int
    steps: int = 0
    host_seconds: float = 0.0
    data_seconds: float = 0.0
    over: bool = False  # this process has come to its good end

    @property
    def where(self) -> str:
        """`process 1 (node7, pid 123): step 12, data wait for 61 s`."""
        return (
            f"process {self.process} ({self.host}, pid {self.pid}): step {self.step}, {self.phase} for"
            f" {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Verdict:
    """Why a start ends: the exit code of all processes, what is said, and by whom."""

    code: int
    text: str
    process: int


class Signs:
    """The files of one start. `name`: the same on all processes. Nothing here raises OSError: a full disk is no end."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / WATCH / name
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)

    def forget_old(self) -> None:
        """Removes the files of starts long ago; for one process to call."""
        with contextlib.suppress(OSError):
            for old in sorted(path for path in self.folder.parent.iterdir() if path != self.folder)[: -KEPT + 1]:
                shutil.rmtree(old, ignore_errors=True)

    def stacks(self, process: int) -> Path:
        """Where the stacks of a process go."""
        return self.folder / f"stacks-{process:05d}.txt"

    def write(self, beat: Beat) -> bool:
        """Whether the beat could be written."""
        return _overwrite(self.folder / f"process-{beat.process:05d}.json", asdict(beat))

    def read(self, process: int) -> Beat | None:
        """The last beat of a process; None before its first."""
        values = _load(self.folder / f"process-{process:05d}.json")
        return None if values is None else Beat(**values)

    def verdict(self) -> Verdict | None:
        """The verdict, once there is one."""
        values = _load(self.folder / VERDICT)
        return None if values is None else Verdict(**values)

    def publish(self, verdict: Verdict) -> Verdict:
        """Makes this the verdict, unless there is one already; returns the one that holds.

        One that is there may be this process's own, of another thread, and is left as it is: others have read it.
        """
        if (there := self.verdict()) is not None:
            return there
        mine = self._verdict_of(verdict.process)
        if _overwrite(mine, asdict(verdict)):
            try:
                os.link(mine, self.folder / VERDICT)  # fails where it is there already
            except FileExistsError:
                pass
            except OSError:  # a file system without links
                with contextlib.suppress(OSError), open(self.folder / VERDICT, "xb") as file:
                    file.write(mine.read_bytes())
        return self.verdict() or verdict

    def reserve(self, process: int) -> None:
        """Takes the room for the verdict that this process may once have to write."""
        _overwrite(self._verdict_of(process), {})

    def _verdict_of(self, process: int) -> Path:
        return self.folder / f"{VERDICT}.{process:05d}"


class Pulse:
    """Who lives? Watches beats of other processes against this process's clock."""

    def __init__(self, signs: Signs, me: int, count: int, patience: float) -> None:
        """patience: seconds without a new beat after which a process is lost."""
        self._signs, self._me, self._count, self._patience = signs, me, count, patience
        self.last: dict[int, Beat] = {}
        self._heard: dict[int, float] = {}
        self._looked: float | None = None

    def look(self, everyone: bool, interval: float) -> list[str]:
        """Reads the beats (of all, or of process 0 alone); who is lost, in words, one entry each."""
        now = time.monotonic()
        if self._looked is None or now - self._looked > 3 * interval + 1:
            self._heard.clear()  # this process stood still, or the folder did: the others get their time anew
        self._looked = now
        others = [process for process in (range(self._count) if everyone else (0,)) if process != self._me]
        return [words for process in others if (words := self._lost(process, now)) is not None]

    def _lost(self, process: int, now: float) -> str | None:
        """Where a process was last and what is known of it, if it is lost."""
        beat, before = self._signs.read(process), self.last.get(process)
        if beat is not None and (before is None or beat.beat != before.beat):
            self.last[process], self._heard[process] = beat, now
        silent = now - self._heard.setdefault(process, now)
        if beat is None:
            return f"process {process}: it never gave a sign of life" if silent > self._patience else None
        condition = _condition(beat)
        if condition == _GONE:
            beat = self._signs.read(process) or beat  # it may have come to its good end a moment ago
        if beat.over or (condition != _GONE and silent <= self._patience):
            return None
        return f"{beat.where}; {condition or f'no sign of life for {silent:.0f} s'}"


def living(folder: Path) -> bool:
    """Whether any start in a run's folder gives signs of life: its first process, while this one looks on for a while.

    Takes LOOK seconds where none does.
    """
    beats: dict[Path, int] = {}
    deadline = time.monotonic() + LOOK
    while time.monotonic() < deadline:
        for path in (folder / WATCH).glob("*/process-00000.json"):
            beat = (_load(path) or {}).get("beat")
            if beat is not None and beats.setdefault(path, beat) != beat:
                return True
        time.sleep(LOOK / 50)
    return False


_GONE, _STOPPED = "it is gone", "it was stopped by a signal (SIGSTOP) and gives no sign of life"


def _condition(beat: Beat) -> str | None:
    """What the system says about a process of this machine: gone, stopped, or None for all else."""
    if beat.machine != machine():
        return None
    try:
        state = Path(f"/proc/{beat.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return _GONE
    except (OSError, IndexError):
        return None
    return {"Z": _GONE, "X": _GONE, "T": _STOPPED, "t": _STOPPED}.get(state)


@functools.cache
def machine() -> str:
    """Equal for two processes that can see each other under /proc, and for no others.

    A host's name and the number of its process namespace do not tell that: there are hosts that are all called
    localhost, and the first namespace of each kernel has the same number.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()} {uuid.uuid4()}"


def _overwrite(path: Path, values: Mapping[str, Any]) -> bool:
    """Whether the values are in the file, which keeps its size (unless they are long)."""
    try:
        with open(path, "r+b" if path.exists() else "wb") as file:
            file.write(json.dumps(values).encode().ljust(SIZE))
            file.truncate()
    except OSError:
        return False
    return True


def _load(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
