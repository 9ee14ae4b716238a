"""What a person sees: start-up phases with their times, a bar on a terminal, plain lines everywhere else.

Each line is flushed as it is made, and a step's line appears only when that step's numbers have really arrived.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from meshtrain.run.speech import say


class Progress:
    """Prints to standard output; on a terminal, a bar on standard error takes the place of the lines of steps."""

    def __init__(self, num_steps: int, log_every: int, quiet: bool = False) -> None:
        self.num_steps, self.log_every, self.quiet = num_steps, log_every, quiet
        self._terminal = sys.stderr.isatty() and sys.stdout.isatty()
        self._bar: Any = None
        self._open: str | None = None  # the phase whose line has no end yet
        self._lock = threading.RLock()

    def say(self, text: str) -> None:
        """One line of its own."""
        with self._lock:
            if self.quiet:
                return
            if self._bar is not None:
                self._bar.write(text)
                return
            self._break_line()
            self._print(text)

    @contextlib.contextmanager
    def phase(self, name: str, announce: bool = True) -> Iterator[None]:
        """A phase of the start and how long it took: `compiling ... 4.1 s`. Phases may overlap in threads.

        Without `announce` it is said only when it is over: for what is short or goes on beside a longer one.
        """
        begun = time.perf_counter()
        with self._lock:
            if announce and self._bar is None and not self.quiet:
                self._break_line()
                self._print(f"{name} ... ", end="")
                self._open = name
        try:
            yield
        except BaseException:
            with self._lock:
                self._break_line()
            raise
        with self._lock:
            if self.quiet:
                return
            seconds = f"{time.perf_counter() - begun:.1f} s"
            if self._open == name:
                self._print(seconds)
                self._open = None
            else:
                self.say(f"{name}: {seconds}")

    def start(self, step: int) -> None:
        """Training begins after `step` steps."""
        if self._terminal and not self.quiet:
            import tqdm

            self._bar = tqdm.tqdm(total=self.num_steps, initial=step, unit="step", dynamic_ncols=True, smoothing=0.1)

    def step(self, record: Mapping[str, Any], seconds_left: float | None) -> None:
        """One finished step: the bar moves, or every `log_every` steps (and first and last) a line appears."""
        step = int(record["step"])
        with self._lock:
            if self._bar is not None:
                self._bar.set_postfix_str(f"loss {record['loss']:.4f}, {', '.join(_speed(record))}", refresh=False)
                self._bar.update(1)
        if record.get("skipped"):
            self.say(f"skipped step {step}: loss or gradient not finite, or no token counted; nothing was changed")
        if self._bar is None and self.is_logged(step):
            self.say(
                f"step {step}/{self.num_steps}  loss {record['loss']:.4f}  grad_norm {record['grad_norm']:.3f}"
                f"  lr {record['learning_rate']:.2e}  {'  '.join(_speed(record))}"
                f"  {format_seconds(seconds_left)} left"
            )

    def is_logged(self, step: int) -> bool:
        """Whether this step has a line where there is no terminal: every `log_every`, the first and the last."""
        return step % self.log_every == 0 or step in (1, self.num_steps)

    def close(self) -> None:
        """Ends the bar."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
                self._bar = None
            self._break_line()

    def _break_line(self) -> None:
        if self._open is not None:
            self._print("")
            self._open = None

    def _print(self, text: str, end: str = "\n") -> None:
        """Nobody reads any more (a closed terminal or pipe): the run goes on in silence."""
        if not say(text, end):
            self.quiet = True


def _speed(record: Mapping[str, Any]) -> list[str]:
    """Tokens per second, and what GPUs tell besides: their utilisation and the memory that was held at most."""
    found = [f"{record['tokens_per_s']:,.0f} tokens/s"]
    found += [f"mfu {record['mfu']:.1%}"] if "mfu" in record else []
    return found + ([f"peak {record['peak_memory_gb']:.1f} GB"] if "peak_memory_gb" in record else [])


def format_seconds(seconds: float | None) -> str:
    """`1:02:03`, `2:03`; `?` where it is not known yet."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
