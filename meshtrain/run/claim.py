"""The claim on a run's folder: one start at a time trains in it, on whatever machine the others are.

A lock of the file system holds it. Some shared folders have no locks, or locks that one host alone sees; so the file
also says who holds it. A holder on another machine is looked for by its signs of life, and one that came at the same
moment is found by what it wrote, before anything is trained.
"""

import contextlib
import fcntl
import os
import socket
import uuid
from pathlib import Path

from meshtrain.errors import InputError
from meshtrain.run.watch.heartbeat import living, machine

LOCK = ".lock"


class Claim:
    """This process's claim on `folder`, until `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        """InputError where another process holds the folder; OSError where it cannot be read or written."""
        self._folder, self._path = folder, folder / LOCK
        self._mine = f"process {os.getpid()} on {socket.gethostname()}\n{uuid.uuid4()}\n{machine()}"
        self._file = open(self._path, "a+", errors="replace")  # noqa: SIM115  (held until the process ends)
        try:
            self._take()
        except BaseException:
            self._file.close()
            raise

    def check(self) -> None:
        """InputError where another process has claimed the folder at the same moment; OSError."""
        with contextlib.suppress(FileNotFoundError):  # nobody has, then
            if (said := self._path.read_text(errors="replace")) != self._mine:
                raise self._refusal(said)

    def release(self) -> None:
        """Another process may have the folder."""
        with self._file:
            if self._said() == self._mine:
                self._file.truncate(0)

    def _take(self) -> None:
        locks = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(self._said()) from None
        except OSError:
            locks = False  # there are none on this file system
        said = self._said()  # by whom no lock holds back: it ended without a word, or is on a machine of its own
        if said and not (locks and said.splitlines()[-1] == machine()) and living(self._folder):
            raise self._refusal(said)
        self._file.truncate(0)
        self._file.write(self._mine)
        self._file.flush()

    def _said(self) -> str:
        self._file.seek(0)
        return self._file.read().strip()

    def _refusal(self, said: str) -> InputError:
        who = said.splitlines()[0] if said else "another process"
        return InputError(
            f"config.workdir={self._folder}: {who} is training in this folder. Wait until it has ended, or name another"
            " folder."
        )
