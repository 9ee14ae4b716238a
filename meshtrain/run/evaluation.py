"""Evaluation during a run: all held-out windows, each once, as sums, so that no split into batches changes the mean."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from meshtrain.io.loader import evaluation_batches
from meshtrain.io.windows import HeldOutWindows
from meshtrain.layout import Placement
from meshtrain.parallel import LossSums


class Evaluation:
    """Held-out loss of a model. `evaluate(params, batch) -> LossSums` is compiled at its first call, once."""

    def __init__(
        self,
        held_out: Mapping[str, HeldOutWindows],
        evaluate: Callable[..., LossSums],
        place: Placement,
        max_batches: int | None,
        reading: Mapping[str, Any],
    ) -> None:
        """max_batches: the most batches of one evaluation, or None. reading: options of `evaluation_batches`."""
        self._held_out, self._evaluate, self._place = dict(held_out), evaluate, place
        self._max_batches, self._reading = max_batches, reading

    def __bool__(self) -> bool:
        return bool(self._held_out)

    def run(self, step: int, params: Any, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The record of an evaluation after `step`; None where `stopped()` became true on the way.

        eval_loss: mean cross-entropy of all counted tokens. eval_bits_per_byte: the same per byte of text, from each
        set's bytes per token. With several sets, one `eval_loss/PATH` each.
        """
        begun = time.perf_counter()
        totals, bits, num_bytes = (0.0, 0), 0.0, 0.0
        record: dict[str, Any] = {"step": step}
        for path, windows in self._held_out.items():
            sums = self._sums(windows, params, stopped)
            if sums is None:
                return None
            ce, num_tokens = sums
            totals = (totals[0] + ce, totals[1] + num_tokens)
            bits += ce / math.log(2)
            num_bytes += num_tokens * windows.tokens.bytes_per_token
            if len(self._held_out) > 1:
                record[f"eval_loss/{path}"] = ce / max(num_tokens, 1)
        record["eval_loss"] = totals[0] / max(totals[1], 1)
        record["eval_perplexity"] = math.exp(min(record["eval_loss"], 700.0))
        record["eval_bits_per_byte"] = bits / num_bytes if num_bytes else None
        record["eval_tokens"] = totals[1]
        record["eval_seconds"] = time.perf_counter() - begun
        return record

    def _sums(self, windows: HeldOutWindows, params: Any, stopped: Callable[[], bool]) -> tuple[float, int] | None:
        """(summed cross-entropy, counted tokens) of one set, added up in float64."""
        ce, num_tokens = 0.0, 0
        waiting: LossSums | None = None
        with evaluation_batches(windows, self._place, **self._reading) as batches:
            for number, batch in enumerate(batches):
                if stopped():
                    return None
                if self._max_batches is not None and number >= self._max_batches:
                    break
                before, waiting = waiting, self._evaluate(params, batch)
                if before is not None:
                    ce, num_tokens = _add(ce, num_tokens, before)
        return _add(ce, num_tokens, waiting) if waiting is not None else (ce, num_tokens)


def _add(ce: float, num_tokens: int, sums: LossSums) -> tuple[float, int]:
    host = jax.device_get(sums)
    return ce + float(host.ce_sum), num_tokens + int(host.num_tokens)
