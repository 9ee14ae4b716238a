"""The folder of checkpoints: which steps are complete, which are damaged, and which may go.

    checkpoints/step_00000050/            complete: it got its name last, by a rename
        arrays/...                        written by Orbax
        checkpoint.json                   every file's size and checksum, every array's shape, and the run's own record
    checkpoints/step_00000060.partial/    an interrupted save

A step counts only when its files are those that its record names; an older good step is never deleted before a newer
one is complete.
"""

import contextlib
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, StorageError
from meshtrain.io.disk import sync
from meshtrain.io.together import ALONE, Member, Together

RECORD = "checkpoint.json"
ARRAYS = "arrays"
PARTIAL = ".partial"
DAMAGED = ".damaged"
DELETED = ".deleted"
FORMAT = 1
EVAL_LOSS = "eval_loss"  # in the run's own record: the held-out loss at this step
CHECKSUMS = "checksums"  # of one process's part of the files, until the record is made of all of them
UNREADABLE = "cannot be read now"  # in what all processes hear of it: no damage, which would be put aside
SECONDS = 3600.0  # the longest that a process may take over its part of the files

_STEP = re.compile(r"step_(\d+)")
_CHUNK = 1 << 24  # bytes read at once for a checksum


class DamagedError(Exception):
    """This folder is no complete checkpoint; the text says why."""


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint. arrays: path -> (logical shape, dtype). record: what the run stored beside the arrays."""

    step: int
    folder: Path
    arrays: dict[str, tuple[tuple[int, ...], str]]
    record: dict[str, Any]


def refuse_pattern(folder: Path) -> None:
    """InputError for a folder in which Orbax cannot save: it looks for its own files there by a pattern, in which some
    characters of a path mean others, and what it does not find so it leaves out without an error."""
    found = next((character for character in "*?[\\" if character in str(folder.absolute())), None)
    if found is not None:
        raise InputError(
            f"{folder.absolute()}: checkpoints cannot be saved in a folder with {found} in its path; name one without."
        )
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise InputError(f"{folder.absolute()}: checkpoints cannot be saved where a name is not UTF-8.") from None


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies once it is complete."""
    return folder / f"step_{step:08d}"


def steps(folder: Path) -> list[int]:
    """The steps that have a folder with a final name, oldest first, whole or not."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    found = [int(match[1]) for match in map(_STEP.fullmatch, names) if match]
    return sorted(step for step in set(found) if step_folder(folder, step).name in names)  # not step_50, a hand's work


def newest(folder: Path, say: Callable[[str], None], together: Together = ALONE) -> Saved | None:
    """The newest step whose every byte is right; what is skipped on the way is said. All processes come to the same.

    Before anything is skipped for good, InputError at a step that is whole but not for this program to take (of a newer
    format, or under another step's name) and StorageError where files are there and cannot be read: they may be whole.
    """
    partials, present = together.share("the steps that there are", partial(_names, folder))
    for name in partials:
        say(f"skipped {name}: its save was interrupted")
    for step in reversed(present):
        try:
            check = partial(_read_part, step_folder(folder, step), together.me)
            return together.agree(f"the files of step {step}", check, SECONDS)
        except StorageError as damage:
            if UNREADABLE in str(damage):
                raise
            say(f"skipped {step_folder(folder, step).name}: {damage}")
    return None


def read(folder: Path, index: int = 0, count: int = 1) -> Saved:
    """The record of one checkpoint, after its files were checked against it; DamagedError if any is not right.

    Of `count` processes that share the work, `index` checks its part of the files.
    """
    saved, files = read_record(folder)
    mine = list(islice(files, index, None, count))
    with ThreadPoolExecutor(max_workers=4) as pool:
        for name, found in zip(mine, pool.map(lambda name: _fingerprint(folder / name), mine), strict=True):
            if found is None:
                raise DamagedError(f"the file {name} is missing")
            if found[0] != files[name][0]:
                raise DamagedError(f"the file {name} has {found[0]} bytes instead of {files[name][0]}")
            if found != tuple(files[name]):
                raise DamagedError(f"the file {name} has another checksum than when it was written")
    return saved


def read_record(folder: Path) -> tuple[Saved, dict[str, list[int]]]:
    """The record of one checkpoint and the (size, checksum) of its files, without looking at them.

    DamagedError where it is not as it was written, InputError where a newer version wrote it, StorageError where it is
    there and cannot be read.
    """
    try:
        with open(folder / RECORD) as file:
            stored = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedError("it is empty" if not any(folder.glob("*")) else f"its {RECORD} is missing") from None
    except OSError as error:
        raise _unreadable(folder / RECORD, error) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"its {RECORD} cannot be read ({error})") from None
    form = stored.get("format") if isinstance(stored, dict) else None
    if isinstance(form, int) and form > FORMAT:  # whole, as far as can be told from here: nothing to put aside
        raise InputError(
            f"{folder} was saved by a newer version: it has format {form}, and this one reads format {FORMAT}. Go on"
            " with that version, or in another folder."
        )
    if not isinstance(stored, dict) or stored.pop("checksum", None) != _checksum(stored):
        raise DamagedError(f"its {RECORD} is not as it was written")
    arrays = {name: (tuple(shape), dtype) for name, (shape, dtype) in stored["arrays"].items()}
    return Saved(stored["step"], folder, arrays, stored["record"]), stored["files"]


def take_checksums(partial: Path, me: Member) -> None:
    """Stores the checksums of this process's part of the files that were written."""
    mine = list(islice(_files(partial), me.index, None, me.count))
    for path in mine:  # not all that Orbax writes is on the disk yet
        sync(path)
    found = {str(path.relative_to(partial)): _fingerprint(path) for path in mine}
    _write(partial / f"{CHECKSUMS}.{me.index}", found)


def complete(
    partial: Path, step: int, arrays: dict[str, tuple[tuple[int, ...], str]], record: dict[str, Any], count: int = 1
) -> Path:
    """Turns a folder whose checksums were all taken, by `count` processes, into the checkpoint of `step`: record, disk
    barrier, rename."""
    parts = [partial / f"{CHECKSUMS}.{index}" for index in range(count)]  # by name: a listing may be an older one
    files = {name: found for part in parts for name, found in json.loads(part.read_text()).items()}
    stored: dict[str, Any] = {
        "format": FORMAT,
        "step": step,
        "arrays": {name: [list(shape), dtype] for name, (shape, dtype) in arrays.items()},
        "record": record,
        "files": dict(sorted(files.items())),
    }
    stored["checksum"] = _checksum(stored)
    _write(partial / RECORD, stored)
    for part in parts:
        part.unlink()
    final = step_folder(partial.parent, step)
    if final.exists():  # the same step of an earlier attempt, damaged or not reached by the resume
        _delete(final)
    for inner in (path for path in partial.rglob("*") if path.is_dir()):
        sync(inner)
    sync(partial)
    partial.rename(final)
    sync(partial.parent)
    return final


def clean(folder: Path, good: Saved | None) -> None:
    """Removes interrupted saves, and moves steps newer than the good one out of the way (they are damaged)."""
    for path in folder.glob(f"step_*{PARTIAL}"):
        _remove(path)
    for path in folder.glob(f"step_*{DELETED}"):
        with contextlib.suppress(OSError):  # somebody may still be reading it, on a network file system
            _remove(path)
    for step in steps(folder):
        if good is None or step > good.step:
            path = step_folder(folder, step)
            aside = path.with_name(path.name + DAMAGED)
            if os.path.lexists(aside):
                _remove(aside)
            path.rename(aside)


def retire(folder: Path, keep_last: int, keep_every: int | None, keep_best: int | None = None) -> None:
    """Deletes what the policy does not keep. Call it only when a newer step has just been completed.

    OSError where one of them cannot be deleted, after all the others are.
    """
    present = steps(folder)
    keep = set(present[-keep_last:]) | {step for step in present if keep_every and step % keep_every == 0}
    keep |= set(_best(folder, present, keep_best)) if keep_best else set()
    unkept = [partial(_delete, step_folder(folder, step)) for step in present if step not in keep]
    leftovers = [path for suffix in (DAMAGED, DELETED) for path in folder.glob(f"step_*{suffix}")]
    failed: OSError | None = None
    for delete in [*unkept, *(partial(_remove, path) for path in leftovers)]:
        try:
            delete()
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def _best(folder: Path, present: list[int], number: int) -> list[int]:
    """The steps with the lowest held-out loss, of those whose record tells one (EVAL_LOSS); of equal ones the older.

    With them those that cannot be read now: they may be of the best.
    """
    losses: dict[int, float] = {}
    unreadable = []
    for step in present:
        try:
            loss = read_record(step_folder(folder, step))[0].record.get(EVAL_LOSS)
        except DamagedError:
            continue  # no best step: the other rules decide over it
        except StorageError:
            unreadable.append(step)
            continue
        if loss is not None and math.isfinite(loss):
            losses[step] = loss
    return sorted(losses, key=lambda step: (losses[step], step))[:number] + unreadable


def _delete(path: Path) -> None:
    """Takes the name away first, so that a kill in the middle never leaves a step that looks whole."""
    doomed = path.with_name(path.name + DELETED)
    path.rename(doomed)
    _remove(doomed)


def _remove(path: Path) -> None:
    """A folder with all that is in it; of a link the link alone, for what it points to is not the run's."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _names(folder: Path) -> list[list[Any]]:
    """The names of interrupted saves, and the steps that are there."""
    return [sorted(path.name for path in folder.glob(f"step_*{PARTIAL}")), steps(folder)]


def _read_part(folder: Path, me: Member) -> Saved:
    try:
        saved = read(folder, me.index, me.count)
    except DamagedError as damage:
        raise StorageError(str(damage)) from None
    if step_folder(folder.parent, saved.step) != folder:
        raise InputError(
            f"{folder} holds step {saved.step}: it was renamed. Give it its name back"
            f" ({step_folder(folder.parent, saved.step).name}), or move it away."
        )
    return saved


def _files(folder: Path) -> Iterator[Path]:
    """The files of a checkpoint, in an order that all processes share, without what this module adds to them."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return (path for path in paths if path.parent != folder)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1))
    sync(path)


def _fingerprint(path: Path) -> tuple[int, int] | None:
    """(bytes, CRC-32) of a file, or None where there is none. StorageError where it cannot be read."""
    size = crc = 0
    try:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    return size, crc


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} {UNREADABLE} ({error.strerror or error}). Nothing was changed: make it readable, or move its step away"
        " to go on from the one before."
    )


def _checksum(stored: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(stored, sort_keys=True).encode())
