"""A trace that cannot be made is said, and is no reason to stop."""

from pathlib import Path

import jax
import pytest

from meshtrain.run.trace import Trace


@pytest.mark.parametrize("moment", ["start_trace", "stop_trace"])
def test_a_profiler_that_fails_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    def fail(*folder: str) -> None:
        raise OSError(28, "No space left on device")

    for name in ("start_trace", "stop_trace"):
        monkeypatch.setattr(jax.profiler, name, fail if name == moment else lambda *folder: None)
    said: list[str] = []
    trace = Trace(tmp_path, (2, 3), said.append)
    for step in range(1, 5):
        trace.before(step, lambda: None)
        trace.after(step, lambda: None)
    trace.close()
    assert len(said) == 1
    assert said[0].startswith("warning: config.profile: no trace in ")
    assert "No space left on device" in said[0]
