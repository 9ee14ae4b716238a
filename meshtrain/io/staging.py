"""All or nothing for a folder: written beside its place, on disk before it is renamed, removed where anything fails.

`.NAME.partial` beside NAME holds a lock and the folder in the making. The system drops the lock when its process ends
in any way, so what a killed process left behind is known to be nobody's, and the next one removes it.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from meshtrain.errors import InputError
from meshtrain.io.disk import sync, sync_all

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A new folder to write into; it becomes `output` when the block ends, and is gone when the block raises.

    InputError where `output` exists (and is not an empty folder), cannot be written or does not fit on the disk, and
    where another process is making it. A link to an empty folder is as good as that folder.
    """
    with errors_named(output):
        refuse_existing(output)
    output = Path(os.path.realpath(output))
    made = list(takewhile(lambda parent: not parent.exists(), output.parents))
    try:
        with errors_named(output):
            output.parent.mkdir(parents=True, exist_ok=True)
            with _locked(output) as partial:
                folder = partial / "new"
                folder.mkdir()
                yield folder
                sync_all(folder)
                os.rename(folder, output)  # fails where `output` has come to hold something
                sync(output.parent)
    except BaseException:
        for parent in made:
            with suppress(OSError):  # someone else's files may be there by now
                parent.rmdir()
        raise


def remove_leftovers(output: Path) -> None:
    """Remove what a killed process left beside `output`; nothing where another process is at work there."""
    output = Path(os.path.realpath(output))
    if _partial(output).is_dir():
        with suppress(InputError), errors_named(output), _locked(output):
            pass


def refuse_existing(output: Path) -> None:
    """InputError unless `output` is free: nothing is there, or an empty folder (or a link to one)."""
    if os.path.ismount(output):
        raise InputError(
            f"{output}: is where a disk is mounted, and a folder gets its name only when it is whole: name one below,"
            f" for example {output / 'new'}."
        )
    if os.path.lexists(output) and not (output.is_dir() and not os.listdir(output)):
        what = "a folder that holds other files" if output.is_dir() else "not a folder"
        raise InputError(f"{output}: is already there and is {what}; nothing was changed. Choose another folder.")


@contextmanager
def errors_named(output: Path) -> Iterator[None]:
    """Errors of the file system while `output` is written, as one message."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise InputError(f"{output}: no room on the disk ({error.strerror}); nothing was left behind.") from None
        raise InputError(f"{output}: cannot be written: {error.strerror or error}.") from None


def _partial(output: Path) -> Path:
    return output.parent / f".{output.name}.partial"


@contextmanager
def _locked(output: Path) -> Iterator[Path]:
    """The partial folder, locked and empty but for the lock; removed at the end."""
    partial = _partial(output)
    lock = _lock(partial, output)
    try:
        for left in partial.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.close(lock)


def _lock(partial: Path, output: Path) -> int:
    """An open file that holds the lock of `partial`, made where it is missing."""
    while True:
        try:
            partial.mkdir()
            new = True
        except FileExistsError:
            new = False
        try:
            lock = os.open(partial / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        except FileNotFoundError:  # its owner finished and removed it between these two lines
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(partial / "lock").st_ino == os.fstat(lock).st_ino:
                return lock
        except BlockingIOError:
            os.close(lock)
            raise InputError(f"{output}: another process is making it; wait until that has ended.") from None
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks: the folder is that of the process that has made it
            if new:
                return lock
            os.close(lock)
            raise InputError(
                f"{output}: another process is making it, or was killed while it did; this file system has no locks to"
                f" tell. If none is at work, remove {partial}."
            ) from None
        os.close(lock)
