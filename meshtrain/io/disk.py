"""What is still there, and whole, after a power cut: bytes and names are on the disk before anything relies on them."""

import errno
import os
from pathlib import Path

_NO_SUCH_THING = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}  # of folders, on some network file systems


def sync(path: Path) -> None:
    """A file's bytes, or a folder's entries (new, renamed and removed files), to the disk. OSError where that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUCH_THING or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """`sync` of a folder, of every file in it and of every folder below. OSError."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            sync(path)
    sync(folder)


def replace(path: Path, content: bytes, durable: bool = True) -> None:
    """A file's new content, whole or not at all: written beside it, and on the disk before it takes the name. OSError.

    durable: whether it is on the disk on return; if not, a power cut may leave the content from before.
    """
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    if durable:
        sync(new)
    new.replace(path)
    if durable:
        sync(path.parent)
