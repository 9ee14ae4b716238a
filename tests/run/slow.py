"""The trainer with slow moments, each of which is told as it begins: python -m tests.run.slow ARGUMENTS.

So that a signal certainly comes in a wait for data, in an evaluation, or while a save is being written.
"""

import time
from pathlib import Path
from typing import Any

from meshtrain import train
from meshtrain.io import checkpoint_folder
from meshtrain.io.loader import Batches
from meshtrain.run.evaluation import Evaluation

READ = (3, 9, 13)  # the steps whose data comes late


def slow_down() -> None:
    """Waits in front of what they slow down."""
    read, take, run = Batches._read, checkpoint_folder.take_checksums, Evaluation.run

    def slow_read(self: Any, step: int) -> Any:
        if step + 1 in READ:
            _wait("data wait", 2.5)
        return read(self, step)

    def slow_take(partial: Path, me: Any) -> None:
        _wait("save", 1.0)
        take(partial, me)

    def slow_run(self: Any, *arguments: Any) -> Any:
        _wait("evaluation", 0.7)
        return run(self, *arguments)

    Batches._read, Evaluation.run = slow_read, slow_run  # type: ignore[method-assign, assignment]
    checkpoint_folder.take_checksums = slow_take


def _wait(name: str, seconds: float) -> None:
    print(f"slow {name}", flush=True)
    time.sleep(seconds)


if __name__ == "__main__":
    slow_down()
    train.leave(train.main())
