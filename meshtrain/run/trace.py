"""`--config.profile=START:STOP`: an XLA trace of those steps, in the run's folder, for TensorBoard or Perfetto."""

from collections.abc import Callable
from pathlib import Path

import jax

from meshtrain.errors import first_line


class Trace:
    """Traces from before the first to after the last of `steps`; `wait` returns when the devices are idle."""

    def __init__(self, folder: Path, steps: tuple[int, int] | None, say: Callable[[str], None]) -> None:
        self._folder, self._steps, self._say = folder, steps, say
        self._running = False

    def before(self, step: int, wait: Callable[[], None]) -> None:
        """Called before a step is started."""
        if self._steps is None or self._running or not self._steps[0] <= step <= self._steps[1]:
            return
        wait()
        self._running = self._tried(lambda: jax.profiler.start_trace(str(self._folder)))

    def after(self, step: int, wait: Callable[[], None]) -> None:
        """Called after a step was started."""
        if self._running and self._steps is not None and step >= self._steps[1]:
            wait()
            self.close()

    def close(self) -> None:
        """Ends a trace that is running."""
        if self._running:
            self._running = False
            if self._tried(jax.profiler.stop_trace):
                self._say(f"trace written to {self._folder}")

    def _tried(self, work: Callable[[], None]) -> bool:
        """Whether it could be done; if not, that is said, nothing more is traced, and training goes on."""
        try:
            work()
        except Exception as error:  # of the profiler, or of the disk
            self._steps = None
            self._say(f"warning: config.profile: no trace in {self._folder}: {first_line(error)}")
            return False
        return True
