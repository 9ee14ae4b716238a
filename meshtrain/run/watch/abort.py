"""When the runtime below JAX ends this process: it does so at once where process 0, its meeting point, is gone.

It raises SIGABRT, from a thread of its own, before Python could hear of it. A handler of the C library's kind is put in
the way, so that the watchdog can first say which process is lost, and end this one with the exit code for that.
"""

import ctypes
import signal
import threading
from collections.abc import Callable

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)
_kept: list[object] = []  # what the C library points to must never be freed


def on_abort(heard: Callable[[], None]) -> None:
    """Calls `heard()` when this process is about to abort; the thread that aborts then waits for ever."""

    def handle(number: int) -> None:
        heard()
        threading.Event().wait()

    handler = _Handler(handle)
    _kept.append(handler)
    library = ctypes.CDLL(None)
    library.signal.restype, library.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, _Handler]
    library.signal(signal.SIGABRT, handler)
