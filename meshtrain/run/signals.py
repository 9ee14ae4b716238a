"""Being asked to stop: SIGTERM, SIGUSR1, SIGHUP and Ctrl-C let the step under way finish, save it, and end PREEMPTED.

While nothing is trained yet there is nothing to save: the run ends at once. A second Ctrl-C ends it at once, unsaved.
"""

import signal
import threading
from types import FrameType

# Exit codes of the trainer: 0 done, 1 a fault of ours, 2 bad input, 3 not finite, 4 storage, and:
PREEMPTED = 5  # stopped by a signal; the step that was reached is saved; the same command goes on from there

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


class Stopped(BaseException):
    """A signal came before training began."""


class StopRequest:
    """Listens for the signals while it is entered."""

    def __init__(self) -> None:
        self.name: str | None = None  # of the signal that came
        self.training = False  # from when on a signal waits for the step to end
        self._before: dict[int, object] = {}

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
        if not self.training:
            raise Stopped
        if repeated and number == signal.SIGINT:
            raise KeyboardInterrupt
