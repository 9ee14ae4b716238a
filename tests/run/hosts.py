"""Several trainers as real processes on this machine, which take each other for hosts."""

import os
import socket
import time
from pathlib import Path

from meshtrain.run.processes.meeting import free_port
from tests.run.runs import Process


def start(
    *argv: str,
    processes: int = 2,
    cache: Path | None = None,
    port: int | None = None,
    late: dict[int, float] | None = None,
    program: str = "meshtrain.train",
    address: str = "127.0.0.1",
) -> list[Process]:
    """Process 0, 1, ... of a run, started at once but for those that are `late` by so many seconds."""
    port = port or free_port()
    late = late or {}
    started: dict[int, Process] = {}
    begun = time.monotonic()
    for index in sorted(range(processes), key=lambda index: late.get(index, 0)):
        time.sleep(max(begun + late.get(index, 0) - time.monotonic(), 0))
        place = ["--coordinator", f"{address}:{port}", "--processes", str(processes), "--process", str(index)]
        started[index] = Process(*argv, *place, cache=cache, program=program)
    return [started[index] for index in range(processes)]


def loopback() -> str:
    """This machine's own address as one of IPv6, where it has that, since it is the rarer one."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return "127.0.0.1"
    return "[::1]"


def finish_all(processes: list[Process], seconds: float = 240) -> list[int]:
    """Waits for the end of all; their exit codes."""
    return [process.finish(seconds) for process in processes]


def environment(**more: str) -> dict[str, str]:
    """This session's environment for a process that makes its own devices."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    return dict(os.environ) | {"XLA_FLAGS": " ".join(flags)} | more
