"""What processes tell each other while they run: over the coordination service, without devices, in bounded time.

Every process must come to the same questions in the same order. With one process nothing is asked and nothing waits.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from meshtrain.errors import InputError, MeshtrainError, NonFiniteError, PeerError, StorageError, first_line
from meshtrain.run.processes.environment import ThisProcess

T = TypeVar("T")
SLACK = 10.0  # seconds longer than process 0 that the others wait, so that its answer still reaches them
KINDS = {kind.__name__: kind for kind in (InputError, NonFiniteError, StorageError, PeerError)}


class Peers:
    """The processes of this run, from the point of view of `me`. Made after `distributed.join`."""

    def __init__(self, me: ThisProcess) -> None:
        self.me = me
        self._asked: dict[str, int] = {}

    def put(self, key: str, text: str) -> None:
        """Stores a text under a new key, for every process to read."""
        _client().key_value_set(f"meshtrain/{key}", text)

    def get(self, key: str, seconds: float) -> str | None:
        """The text under a key, as soon as it is there; None if it is not within `seconds`."""
        try:
            return str(_client().blocking_key_value_get(f"meshtrain/{key}", max(int(seconds * 1000), 1)))
        except Exception as error:  # the service's own kind of error, told apart by its text
            if "DEADLINE_EXCEEDED" in str(error) or "NOT_FOUND" in str(error):
                return None
            raise PeerError(f"the coordination service of process 0 does not answer: {first_line(error)}") from None

    def post(self, key: str, text: str) -> None:
        """Puts a text under a key, in the place of one that is there."""
        _client().key_value_set(f"meshtrain/{key}", text, allow_overwrite=True)

    def look(self, key: str) -> str | None:
        """The text under a key, without waiting for it; None where there is none yet."""
        try:
            return str(_client().key_value_try_get(f"meshtrain/{key}"))
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise PeerError(f"the coordination service of process 0 does not answer: {first_line(error)}") from None

    def share(self, name: str, work: Callable[[], Any], seconds: float | None = None) -> Any:
        """What `work()` returns on process 0 (plain JSON values), on all of them; its MeshtrainError ends them all."""
        if self.me.count == 1:
            return work()
        seconds = self.me.wait if seconds is None else seconds
        key = self._key(name)
        if self.me.is_first:
            answer, error = _try(work, self.me)
            self.put(key, json.dumps(answer))
            if error is not None:
                raise error
        else:
            text = self.get(key, seconds + SLACK)
            if text is None:
                raise PeerError(f"process 0 did not say within {seconds + SLACK:.0f} s how this went: {name}")
            answer = json.loads(text)
            _raise(answer)
        return answer["value"]

    def agree(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T:
        """`work()` on every process, where it ends well on all of them; a MeshtrainError of one ends them all."""
        if self.me.count == 1:
            return work()
        seconds = self.me.wait if seconds is None else seconds
        kept: list[T] = []
        answer, error = _try(lambda: kept.append(work()), self.me)
        verdict = self._verdict(name, answer, seconds)
        if error is not None:
            raise error
        _raise(verdict)
        return kept[0]

    def gather(self, name: str, value: Any, seconds: float | None = None) -> list[Any]:
        """The values (plain JSON) of all processes, by index, on all of them. PeerError names who is missing."""
        if self.me.count == 1:
            return [value]
        verdict = self._verdict(name, {"value": value}, self.me.wait if seconds is None else seconds)
        _raise(verdict)
        return list(verdict["values"])

    def _verdict(self, name: str, answer: dict[str, Any], seconds: float) -> dict[str, Any]:
        """All answers are read by process 0, which says what came of them: the first error, or every value."""
        key = self._key(name)
        if not self.me.is_first:
            self.put(f"{key}/{self.me.index}", json.dumps(answer))
            text = self.get(key, seconds + SLACK)
            if text is None:
                raise PeerError(f"process 0 did not say within {seconds + SLACK:.0f} s how this went: {name}")
            return dict(json.loads(text))
        answers: list[dict[str, Any] | None] = [answer]
        deadline = time.monotonic() + seconds
        for index in range(1, self.me.count):
            text = self.get(f"{key}/{index}", max(deadline - time.monotonic(), 0.01))
            answers.append(None if text is None else json.loads(text))
        missing = [str(index) for index, each in enumerate(answers) if each is None]
        failed = [each for each in answers if each is not None and "error" in each]
        verdict: dict[str, Any] = {"values": [each and each.get("value") for each in answers]}
        if failed:
            verdict = failed[0]
        elif missing:
            text = f"process {', '.join(missing)} of {self.me.count} did not answer within {seconds:.0f} s: {name}"
            verdict = {"error": text, "kind": PeerError.__name__}
        self.put(key, json.dumps(verdict))
        return verdict

    def _key(self, name: str) -> str:
        """A key of its own for each time that a question is asked."""
        self._asked[name] = self._asked.get(name, 0) + 1
        return f"{name}/{self._asked[name]}"


def part(seconds: float = 5.0) -> bool:
    """Before an end with an error: lets the others hear of it, who need process 0 for that. Whether there are any.

    JAX's own farewell, at exit, waits for processes that may never come: after this, end the process at once.
    """
    if "jax" not in sys.modules or _client() is None:
        return False
    with contextlib.suppress(Exception):  # the others are gone, or busy
        _client().wait_at_barrier("meshtrain/parting", int(seconds * 1000))
    return True


def _try(work: Callable[[], Any], me: ThisProcess) -> tuple[dict[str, Any], Exception | None]:
    """(what to tell the others, this process's own error)."""
    try:
        return {"value": work()}, None
    except Exception as error:
        text = str(error) if isinstance(error, MeshtrainError) else f"{type(error).__name__}: {first_line(error)}"
        kind = type(error).__name__ if type(error).__name__ in KINDS else PeerError.__name__
        return {"error": text if me.is_first else f"{me}: {text}", "kind": kind}, error


def _raise(answer: dict[str, Any]) -> None:
    if "error" in answer:
        raise KINDS[answer["kind"]](answer["error"])


def _client() -> Any:
    from jax._src import distributed  # the service's client has no public name

    return distributed.global_state.client
