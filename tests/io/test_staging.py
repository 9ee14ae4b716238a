"""Folders that come whole or not at all, where the place is a link, a mounted disk or a disk without locks."""

import errno
import fcntl
from pathlib import Path

import pytest

from meshtrain.errors import InputError
from meshtrain.io.staging import staged


def make(output: Path) -> None:
    with staged(output) as folder:
        (folder / "file").write_text("new")


def test_a_link_to_an_empty_folder_is_that_folder(tmp_path: Path) -> None:
    """As people have who keep their data on a larger disk; the work is done there, too."""
    (tmp_path / "disk" / "books").mkdir(parents=True)
    (tmp_path / "books").symlink_to(tmp_path / "disk" / "books")
    with staged(tmp_path / "books") as folder:
        assert folder.is_relative_to(tmp_path / "disk")
        (folder / "file").write_text("new")
    assert (tmp_path / "books").is_symlink()
    assert (tmp_path / "disk" / "books" / "file").read_text() == "new"
    (tmp_path / "lost").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="is already there and is not a folder"):
        make(tmp_path / "lost")


def test_a_mounted_disk_is_refused_before_any_work() -> None:
    with pytest.raises(InputError, match=r"/proc: is where a disk is mounted.*for example /proc/new"):
        make(Path("/proc"))


def test_without_locks_the_folder_belongs_to_whoever_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(file: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    with staged(tmp_path / "one") as folder:
        (folder / "file").write_text("new")
        with pytest.raises(InputError, match=r"no locks to tell. If none is at work, remove .*/\.one\.partial"):
            make(tmp_path / "one")
        assert (folder / "file").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (tmp_path / "one" / "file").read_text() == "new"
