"""The processes that share a folder, as the folder's code sees them: who does what, and when have all done it.

What a run hands over keeps this shape with any means of talking; without it there is one process, and nothing waits.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Member(Protocol):
    """This process, `index` of `count`."""

    @property
    def index(self) -> int: ...
    @property
    def count(self) -> int: ...


class Together(Protocol):
    """All processes, each of which comes to the same questions in the same order (of one thread).

    agree: `work()` on every process; what it returned here, once it has ended well on all. share: `work()` on process 0
    alone; what it returned (plain JSON values), on all. A MeshtrainError of any of them is raised on every process.
    """

    @property
    def me(self) -> Member: ...
    def agree(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T: ...
    def share(self, name: str, work: Callable[[], Any], seconds: float | None = None) -> Any: ...


class _Only:
    index, count = 0, 1


class Alone:
    """One process: what all do together it does."""

    me: Member = _Only()

    def agree(self, name: str, work: Callable[[], T], seconds: float | None = None) -> T:
        """`work()`."""
        return work()

    def share(self, name: str, work: Callable[[], Any], seconds: float | None = None) -> Any:
        """`work()`."""
        return work()


ALONE = Alone()
