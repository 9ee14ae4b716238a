"""A piece of the start that goes on in a thread of its own, while the main thread does something else."""

import threading
from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar, cast

T = TypeVar("T")


class Background(Generic[T]):
    """`work()` in a daemon thread, so that a run that ends early does not wait for it."""

    running: ClassVar[set[str]] = set()  # names; a count would need a lock

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        self._value: T | None = None
        self._error: BaseException | None = None
        self._name = name
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Waits; raises what the work raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def _run(self, work: Callable[[], T]) -> None:
        Background.running.add(self._name)
        try:
            self._value = work()
        except BaseException as error:  # carried over to whoever asks for the result
            self._error = error
        finally:
            Background.running.discard(self._name)
