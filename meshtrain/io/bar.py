"""The progress bar of whatever reads or writes many bytes: on a terminal, and nowhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def byte_bar(what: str, total: int | None, progress: bool) -> Iterator[Callable[[int], object]]:
    """A bar in bytes while the block lasts; gives the function that moves it on. None at all without `progress`."""
    from tqdm import tqdm

    with tqdm(
        desc=what, total=total, unit="B", unit_scale=True, leave=False, disable=None if progress else True
    ) as bar:
        yield bar.update
