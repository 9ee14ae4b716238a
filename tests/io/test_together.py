"""Several processes and one folder of checkpoints: each has its part of the files, and all come to the same step."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshtrain.errors import MeshtrainError, StorageError
from meshtrain.io import checkpoint, checkpoint_folder
from meshtrain.io.checkpoint_folder import CHECKSUMS, PARTIAL


@dataclass
class Member:
    index: int
    count: int


class Threads:
    """Processes as threads of one, with what they tell each other in a list."""

    def __init__(self, me: Member, barrier: threading.Barrier, told: dict[int, Any]) -> None:
        self.me, self._barrier, self._told = me, barrier, told

    def agree(self, name: str, work: Callable[[], Any], seconds: float | None = None) -> Any:
        return self._exchange(work)[self.me.index]

    def share(self, name: str, work: Callable[[], Any], seconds: float | None = None) -> Any:
        return self._exchange(work if self.me.index == 0 else lambda: None)[0]

    def _exchange(self, work: Callable[[], Any]) -> list[Any]:
        try:
            self._told[self.me.index] = work()
        except MeshtrainError as error:
            self._told[self.me.index] = error
        self._barrier.wait(10)
        told = [self._told[index] for index in range(self.me.count)]
        self._barrier.wait(10)
        for each in told:
            if isinstance(each, MeshtrainError):
                raise type(each)(str(each))
        return told


def together(count: int, work: Callable[[Threads], Any]) -> list[Any]:
    """`work` by each of `count` processes; what each returned."""
    barrier = threading.Barrier(count)
    told: dict[int, Any] = {}
    results: dict[int, Any] = {}

    def member(index: int) -> None:
        results[index] = work(Threads(Member(index, count), barrier, told))

    threads = [threading.Thread(target=member, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [results[index] for index in range(count)]


def save(folder: Path, step: int, count: int) -> Path:
    """A checkpoint of seven files, completed by `count` processes."""
    partial = folder / f"step_{step:08d}{PARTIAL}"
    (partial / "arrays").mkdir(parents=True)
    for number in range(7):
        (partial / "arrays" / f"{number}").write_bytes(bytes([number]) * 100)
    for index in range(count):
        checkpoint_folder.take_checksums(partial, Member(index, count))
    return checkpoint_folder.complete(partial, step, {}, {}, count)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_record_is_the_same_however_many_take_the_checksums(tmp_path: Path, count: int) -> None:
    final = save(tmp_path, 5, count)
    _, files = checkpoint_folder.read_record(final)
    assert list(files) == [f"arrays/{number}" for number in range(7)]
    assert not list(final.glob(f"{CHECKSUMS}*"))
    assert checkpoint_folder.read(final).step == 5
    assert (final / "checkpoint.json").read_bytes() == (save(tmp_path / "other", 5, 2) / "checkpoint.json").read_bytes()


@pytest.mark.parametrize("damaged", range(7))
def test_a_file_that_any_process_finds_damaged_lets_all_skip_the_step(tmp_path: Path, damaged: int) -> None:
    save(tmp_path, 5, 3)
    bad = save(tmp_path, 6, 3) / "arrays" / f"{damaged}"
    assert [saved.step for saved in together(3, lambda all: checkpoint_folder.newest(tmp_path, print, all))] == [6] * 3
    bad.write_bytes(bytes([damaged + 1]) * 100)
    said: list[str] = []
    found = together(3, lambda all: checkpoint_folder.newest(tmp_path, said.append, all))
    assert [saved.step for saved in found] == [5] * 3
    assert (
        said == [f"skipped step_00000006: the file arrays/{damaged} has another checksum than when it was written"] * 3
    )
    with pytest.raises(checkpoint_folder.DamagedError):
        checkpoint_folder.read(tmp_path / "step_00000006", damaged % 3, 3)
    checkpoint_folder.read(tmp_path / "step_00000006", (damaged + 1) % 3, 3)  # which has other files to look at


def test_nothing_whole_is_none_for_all(tmp_path: Path) -> None:
    (tmp_path / "step_00000007").mkdir()
    assert together(2, lambda all: checkpoint_folder.newest(tmp_path, print, all)) == [None, None]
    with pytest.raises(StorageError):
        checkpoint_folder._read_part(tmp_path / "step_00000007", Member(0, 1))


def test_all_find_the_same_step_though_a_run_saves_another_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`init` may be a run that goes on. Each for itself they would start from different weights."""
    save(tmp_path, 5, 1)
    look, looked = checkpoint_folder._names, threading.Event()

    def names(folder: Path) -> list[list[Any]]:
        found = look(folder)
        looked.set()
        return found

    monkeypatch.setattr(checkpoint_folder, "_names", names)

    def start(all: Threads) -> tuple[int, int]:
        if all.me.index == 1:
            assert looked.wait(10)
            save(tmp_path, 6, 1)
        return checkpoint.find(tmp_path, print, all).step, checkpoint.find(tmp_path, print).step

    assert together(2, start) == [(5, 6), (5, 6)]
