"""From a step's values on the devices to its record: fetched one step late, so that the devices never wait for us.

The record carries the number of the step that made it, whatever has been started since.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax

from meshtrain.errors import NonFiniteError
from meshtrain.run.metrics import Metrics
from meshtrain.run.progress import Progress
from meshtrain.run.routers import router_record


@dataclass(frozen=True)
class Work:
    """What one step is: its last number, the tokens it reads (counted or not), and what its arithmetic costs.

    flops: model FLOPs of a step: the forward and backward pass, causal attention counted half, recomputation not
    counted. peak: FLOP/s of all devices together, or None where it is not known, and then there is no utilisation.
    """

    num_steps: int
    tokens: int
    flops: float
    peak: float | None
    max_skipped: int


class Report:
    """Turns steps into records, in order. `seconds` of a step: from the end of the step before it to its own end."""

    def __init__(self, work: Work, metrics: Metrics, progress: Progress) -> None:
        self._work, self._metrics, self._progress = work, metrics, progress
        self._waiting: tuple[int, float, float, dict[str, jax.Array]] | None = None
        self._skipped = 0
        self._rate: float | None = None  # seconds per step, smoothed
        self._since = time.perf_counter()
        self.last: dict[str, Any] = {}

    def step(self, step: int, learning_rate: float, data_seconds: float, values: dict[str, jax.Array]) -> None:
        """Step `step` was started; its record is made when the next one is. NonFiniteError after too many in a row."""
        before, self._waiting = self._waiting, (step, learning_rate, data_seconds, values)
        if before is not None:
            self._record(*before)

    def flush(self) -> None:
        """Waits for the step that was started last, and makes its record."""
        before, self._waiting = self._waiting, None
        if before is not None:
            self._record(*before)

    def resume_clock(self) -> None:
        """What was done since the last record (an evaluation, a trace) is no step's time."""
        self._since = time.perf_counter()

    def _record(self, step: int, learning_rate: float, data_seconds: float, values: dict[str, jax.Array]) -> None:
        host = jax.device_get(values)  # waits for the devices
        routers = host.pop("routers", None)
        numbers = {name: float(value) for name, value in host.items()}
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        record: dict[str, Any] = {
            "step": step,
            "loss": numbers["loss"],
            "ce": numbers["ce"],
            "z_loss": numbers["z_loss"],
            "perplexity": math.exp(min(numbers["ce"], 700.0)),
            "grad_norm": numbers["grad_norm"],
            "learning_rate": learning_rate,
            "tokens": int(numbers["num_tokens"]) if math.isfinite(numbers["num_tokens"]) else None,
            "tokens_per_s": self._work.tokens / seconds,
            "seconds": seconds,
            "data_seconds": data_seconds,
            "skipped": int(numbers["skipped"]),
        }
        record |= {name: value for name, value in numbers.items() if name not in record and name != "num_tokens"}
        if self._work.peak is not None:
            record["mfu"] = self._work.flops / seconds / self._work.peak
        if (memory := peak_memory(jax.local_devices())) is not None:
            record["peak_memory_gb"] = memory / 1e9
        self._rate = seconds if self._rate is None else 0.9 * self._rate + 0.1 * seconds
        if routers is not None:
            record |= router_record(routers, with_load=self._progress.is_logged(step))
        self._progress.step(record, self._rate * (self._work.num_steps - step))
        self._metrics.write(record)
        self.last = record
        self._count_skipped(step, bool(record["skipped"]))

    def _count_skipped(self, step: int, skipped: bool) -> None:
        self._skipped = self._skipped + 1 if skipped else 0
        if self._skipped >= self._work.max_skipped:
            raise NonFiniteError(
                f"{self._skipped} steps in a row, up to step {step}, had a loss or gradient that is not finite (or no"
                " counted token); they changed nothing. Lower config.optimizer.learning_rate, look at the data, or"
                f" raise config.max_skipped={self._work.max_skipped}."
            )


# Dense FLOP/s of one GPU with 16-bit inputs, from the vendors' data sheets (without sparsity).
_PEAKS = {
    "B200": 2.25e15, "GB200": 2.5e15, "H200": 989e12, "GH200": 989e12, "H100 NVL": 835e12, "H100 PCIE": 756e12,
    "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A10": 125e12, "V100": 125e12,
}  # fmt: skip


def peak_memory(devices: Iterable[jax.Device]) -> int | None:
    """Bytes that the fullest of these devices has held at most since the start; None where they do not say (CPUs)."""
    held = [stats["peak_bytes_in_use"] for device in devices if (stats := device.memory_stats())]
    return max(held, default=None)


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of a GPU for the utilisation (bf16, dense); None for a CPU and for kinds that are not in the table."""
    kind = device.device_kind.upper()
    if device.platform == "cpu":
        return None
    return next((peak for name, peak in _PEAKS.items() if name in kind), None)
