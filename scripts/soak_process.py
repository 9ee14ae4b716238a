"""A process of the soak's run: the trainer, with slow moments, which also writes down the samples that it takes.

    python scripts/soak_process.py START TRAINER_ARGUMENTS...

START-PID.jsonl gets a line for each step that is read: its number, and those of this process's samples.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from meshtrain import train
from meshtrain.io import checkpoint_folder
from meshtrain.io.loader import Batches
from meshtrain.io.windows import Windows


def main(argv: list[str]) -> int:
    """The trainer's exit code, where it comes back at all."""
    samples = Path(f"{argv[0]}-{os.getpid()}.jsonl")
    place, read, take = Batches._place, Batches._read, checkpoint_folder.take_checksums

    def slow_read(self: Any, step: int) -> Any:
        time.sleep(1.0 if random.random() < 0.05 else 0.0)  # so that signals also come in a wait for data
        return read(self, step)

    def slow_take(partial: Path, me: Any) -> None:
        time.sleep(random.uniform(0, 1))  # and in a save
        take(partial, me)

    def note(self: Any, rows: Any, step: int) -> Any:
        if isinstance(self._source, Windows):  # and not one of an evaluation
            numbers = (step * self._global_batch + self._mine).tolist()
            with open(samples, "a") as file:
                file.write(json.dumps([step + 1, numbers]) + "\n")
        return place(self, rows, step)

    Batches._place, Batches._read = note, slow_read  # type: ignore[method-assign]
    checkpoint_folder.take_checksums = slow_take
    train.leave(train.main(argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
