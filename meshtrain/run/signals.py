"""Being asked to stop: SIGTERM, SIGUSR1, SIGHUP and Ctrl-C let the step under way finish, save it, and end PREEMPTED.

While nothing is trained yet there is nothing to save: the run ends at once. A second Ctrl-C ends it at once, unsaved.

Of several processes any one may be asked, and all must end after the same step. They count the same points: one before
each step, and one before each batch of an evaluation. Process 0 says at which point to end, two ahead of its own; the
others look at each point whether it has said so. None can be further: at point n a process has seen the result of what
followed point n - 2, in which process 0 took part after its own point n - 2. So nobody waits for an agreement.
"""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn, Protocol

from meshtrain.errors import Exit, PeerError

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
AHEAD = 2
WANTED, DECIDED = "stop/wanted", "stop/decided"


class Notes(Protocol):
    """Short texts that all processes of a run see as soon as one has put them there."""

    def post(self, key: str, text: str) -> None:
        """Puts a text under a key, in the place of one that is there."""

    def look(self, key: str) -> str | None:
        """The text under a key, without waiting; None where there is none yet."""


def _leave(name: str) -> NoReturn:
    """The end of a process that has nothing to save, whatever it is doing.

    An exception would have to come through all that: where the interpreter collects garbage it is dropped, where a
    library's C++ code is on the way it is an abort. What is half made (a folder of data) the next start removes.
    """
    with suppress(OSError):
        os.write(1, f"\n{_nothing_to_save(name)}\n".encode())
    os._exit(Exit.PREEMPTED)


def _nothing_to_save(name: str) -> str:
    return f"{name} before training began: nothing to save"


def listen_no_more() -> None:
    """All is done, and how this process ends is decided: a signal that comes now changes nothing."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Listens for the signals while it is entered."""

    def __init__(self) -> None:
        self.name: str | None = None  # of the signal that came, here or elsewhere
        self.training = False  # from when on a signal waits for the step to end
        self.point = 0  # how many times `now` was asked
        self._end: int | None = None  # the point at which all end
        self._notes: Notes | None = None
        self._first = True
        self._lock = threading.Lock()
        self._before: dict[int, object] = {}

    def share(self, notes: Notes, first: bool) -> None:
        """There are other processes; `first`: this is the one that says when to end. From now on nobody ends alone."""
        self._notes, self._first = notes, first
        if self.name is not None:
            self._tell()

    def begin(self) -> None:
        """Training begins: from now on there is something to save."""
        with self._lock:
            self.training = True

    def now(self) -> bool:
        """Whether to end here. Asked at the same points by all processes, and by each after the last but one result."""
        self.point += 1
        if self._notes is None:
            return self.name is not None
        if self._end is None and self._first:
            if self.name is None and (asked := self._notes.look(WANTED)) is not None:
                self.name = asked
            if self.name is not None:
                self._end = self.point + AHEAD
                self._notes.post(DECIDED, f"{self._end} {self.name}")
        elif self._end is None and (decided := self._notes.look(DECIDED)) is not None:
            end, self.name = decided.split(maxsplit=1)
            self._end = int(end)
            if self._end < self.point:
                raise PeerError(
                    f"{self.name}: process 0 ends before step or batch {end} of this start, and this process is at"
                    f" {self.point}: the layout lets processes train without each other; give each a part of the batch"
                )
        return self._end is not None and self.point >= self._end

    def before_training(self) -> str | None:
        """For process 0 of several, now and then: why to end at once where a signal came and nothing is trained yet."""
        if self.training or self._notes is None or not self._first:
            return None
        with self._lock:
            name = self.name or self._notes.look(WANTED)
            if name is None or self.training:
                return None
            return _nothing_to_save(name)

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            return self  # only a main thread may listen
        for number in SIGNALS:
            if signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        repeated, self.name = self.name is not None, signal.Signals(number).name
        if self._notes is None and not self.training:
            _leave(self.name)
        if repeated and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self._notes is not None and not repeated:
            threading.Thread(target=self._tell, name="stop request", daemon=True).start()

    def _tell(self) -> None:
        """Asks all to stop; where somebody has asked already, that is as good."""
        assert self._notes is not None
        assert self.name is not None
        if not self._first:
            self._notes.post(WANTED, self.name)
