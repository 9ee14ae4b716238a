"""What gets a name is on the disk by then: files before their rename, folders after it."""

import errno
import os
from pathlib import Path

import pytest

from meshtrain.io import disk


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was written through and renamed, in order, by name."""
    found: list[str] = []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        found.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def replace(old: Path, new: Path) -> None:
        found.append(f"name {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return found


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, order: list[str]) -> None:
    (tmp_path / "run").mkdir()
    disk.replace(tmp_path / "run" / "a", b"new")
    assert (tmp_path / "run" / "a").read_bytes() == b"new"
    assert order == ["sync a.new", "name a", "sync run"]
    disk.replace(tmp_path / "run" / "a", b"newer", durable=False)
    assert order[3:] == ["name a"]


def test_a_folder_is_synced_with_all_that_is_in_it(tmp_path: Path, order: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    (tmp_path / "a" / "nowhere").symlink_to("nothing")
    disk.sync_all(tmp_path / "a")
    assert sorted(order) == ["sync a", "sync b", "sync c"]


def test_a_file_system_that_cannot_sync_folders_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "no such thing")

    monkeypatch.setattr(os, "fsync", fsync)
    disk.sync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="no such thing"):
        disk.sync(tmp_path / "file")
