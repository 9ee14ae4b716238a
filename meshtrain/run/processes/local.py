"""Several processes of the trainer on this machine, as a rehearsal of many hosts: started, heard, and ended together.

Every line of theirs is printed behind their number. The first one that fails decides: the others have a moment to end
by themselves, and then they are killed; a run on disk bears that at any time. On Linux they also die with this process.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType

from meshtrain.run.processes import mortal
from meshtrain.run.speech import say

GRACE = 10.0  # seconds that the others have after one has failed
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
GLOO = re.compile(r"\[Gloo\] Rank \d+ is connected to .*\n?")  # what the exchange between CPU processes prints


def commands(num_processes: int, num_devices: int, port: int, arguments: Sequence[str]) -> list[list[str]]:
    """The command line of each process: the trainer's own arguments, and which one of how many it is.

    num_devices: CPU devices of each process.
    """
    trainer = [sys.executable, "-m", "meshtrain.train", *arguments]
    meeting = ["--coordinator", f"127.0.0.1:{port}", "--processes", str(num_processes)]
    devices = [f"--config.cpu_devices={num_processes * num_devices}"]
    return [[*trainer, *devices, *meeting, "--process", str(index)] for index in range(num_processes)]


class LocalProcesses:
    """Running processes. `run` returns when all have ended."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._lock = threading.Lock()
        self._children = [
            subprocess.Popen(
                _mortal(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                stdin=subprocess.DEVNULL, start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip
        self._errors: list[deque[str]] = [deque(maxlen=1) for _ in self._children]
        for index, child in enumerate(self._children):
            self._print("launch", f"process {index}: pid {child.pid}")

    def run(self) -> int:
        """Prints what they say until all have ended. Returns 0, or the exit code of the first one that failed.

        A process that a signal ended counts as 128 + its number. Signals to this process are passed on to all of them.
        """
        before = {number: signal.signal(number, self._forward) for number in FORWARDED}
        readers = [threading.Thread(target=self._read, args=(i,), daemon=True) for i in range(len(self._children))]
        try:
            for reader in readers:
                reader.start()
            failed = self._first_failure()
            if failed is not None:
                self._end_others(failed)
            for reader in readers:
                reader.join(5)
        finally:
            for child in self._children:
                child.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        if failed is None:
            return 0
        code = self._children[failed].returncode
        self._print("launch", self._reason(failed, code))
        return code if code > 0 else 128 - code

    def _first_failure(self) -> int | None:
        """Waits for the first process that ends with an error; None where all end well."""
        running = set(range(len(self._children)))
        while running:
            for index in sorted(running):
                code = self._children[index].poll()
                if code is not None:
                    running.discard(index)
                    if code:
                        return index
            time.sleep(0.05)
        return None

    def _end_others(self, failed: int) -> None:
        deadline = time.monotonic() + GRACE
        for index, child in enumerate(self._children):
            try:
                child.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                self._print("launch", f"process {index} is killed, since process {failed} has failed")
                child.kill()
                child.wait()

    def _reason(self, index: int, code: int) -> str:
        how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        said = f": {self._errors[index][0]}" if self._errors[index] else ""
        return f"process {index} ended with {how}{said}"

    def _forward(self, number: int, frame: FrameType | None) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    def _read(self, index: int) -> None:
        stream = self._children[index].stdout
        assert stream is not None
        begun = ""  # of a line that something else was printed into
        with stream:
            for line in stream:
                rest = GLOO.sub("", line)
                if rest != line and not rest.endswith("\n"):
                    begun += rest
                    continue
                if rest.startswith("error: "):
                    self._errors[index].append(rest.strip())
                self._print(str(index), (begun + rest).rstrip("\n"))
                begun = ""

    def _print(self, who: str, text: str) -> None:
        with self._lock:
            say(f"[{who}] {text}")


def _mortal(command: Sequence[str]) -> list[str]:
    """The command of a process that dies with this one."""
    return [sys.executable, "-S", "-E", mortal.__file__, str(os.getpid()), *command]
