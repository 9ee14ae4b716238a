"""A process of a pretended run: python -m tests.run.watch.member FOLDER INDEX COUNT BEHAVIOUR. Needs no JAX.

It makes steps of 20 ms, in step with the others by files, until step 10; then does what BEHAVIOUR says.
"""

import os
import signal
import sys
import time
from pathlib import Path

from meshtrain.errors import InputError
from meshtrain.run.processes import ThisProcess
from meshtrain.run.watch import DATA, END, STEP, WatchConfig, Watchdog

CONFIG = WatchConfig(floor=4.0, factor=5.0, start=20.0, lost=2.0)


def main(folder: Path, index: int, count: int, behaviour: str) -> int:
    """The exit code."""
    watch = Watchdog(CONFIG, ThisProcess(index, count))
    watch.start(folder, "0001", lambda: None)
    watch.phases.enter(STEP)
    try:
        for step in range(1, 40):
            watch.phases.enter(DATA)
            if step == 10 and behaviour == "waits for data":
                time.sleep(1000)
            watch.phases.enter(STEP)
            watch.step(step, 0.01, 0.0)
            if step == 10 and behaviour == "has bad data":
                raise InputError("shard-00000.bin: token id 999 (asked for by sample 77)")
            if step == 10 and behaviour == "has a fault":
                raise ValueError("a fault")
            if step == 10 and behaviour == "aborts":
                os.abort()
            if step == 10 and behaviour in ("stops", "is killed"):
                os.kill(os.getpid(), signal.SIGSTOP if behaviour == "stops" else signal.SIGKILL)
            meet(folder, index, count, step)
            print(f"step {step}", flush=True)
    except Exception as error:
        watch.failed(error)
        print(f"error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    watch.phases.enter(END)
    return watch.done(0)


def meet(folder: Path, index: int, count: int, step: int) -> None:
    """What a collective does: waits for all, for ever."""
    (folder / f"{step}.{index}").touch()
    while not all((folder / f"{step}.{other}").exists() for other in range(count)):
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
