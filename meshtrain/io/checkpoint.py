"""Checkpoints: the training state on disk, in logical shapes, belonging to no layout.

Saving is asynchronous (the arrays are taken at once, written in the background, and named last); loading reads each
device's slices straight into the shardings that are asked for. Nothing is ever half loaded: the stored tree is compared
with the wanted one before the first byte is read.
"""

import contextlib
import errno
import functools
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshtrain.errors import InputError, MeshtrainError, StorageError, first_line
from meshtrain.io import checkpoint_folder
from meshtrain.io.checkpoint_folder import ARRAYS, PARTIAL, SECONDS, Saved
from meshtrain.io.together import ALONE, Together
from meshtrain.layout import ArraySpec, Tree, path_name
from meshtrain.layout.array import is_spec
from meshtrain.layout.words import size_text

PARAMS = "params"  # the weights' place in a training state: what a params-only load reads
JOINED = "manifest.ocdbt"  # what Orbax writes last, over the parts of all processes; without it nothing can be read
_SHOWN = 8  # paths listed in an error before "and N more"


@dataclass(frozen=True)
class CheckpointConfig:
    """every: steps between saves. keep_last: how many of the newest stay. keep_every: steps divisible by it stay for
    ever, or None. keep_best: so many with the lowest held-out loss stay, too, or None. The last step of a run is
    always saved.
    """

    every: int = 1000
    keep_last: int = 2
    keep_every: int | None = None
    keep_best: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "keep_last", "keep_every", "keep_best"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"checkpoint.{name}: {value} must be at least 1; checkpoint.{name}=1 would work.")


class Checkpoints:
    """The checkpoints of one run folder. One save is under way at a time; a failed one is raised at the next call.

    With several processes each writes and checks its part; process 0 alone makes, names and deletes folders.
    """

    def __init__(
        self, folder: Path, config: CheckpointConfig, say: Callable[[str], None], together: Together = ALONE
    ) -> None:
        checkpoint_folder.refuse_pattern(folder)
        self.folder, self.config, self.say, self._together = folder.absolute(), config, say, together
        self.began: float | None = None  # when the save that is being written was started (time.monotonic)
        self._finisher: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._writer: Any = None

    def newest(self) -> Saved | None:
        """The newest complete step; damaged ones are skipped, with a message, and put aside. None if there is none."""
        saved = checkpoint_folder.newest(self.folder, self.say, self._together)

        def clean() -> None:
            with _storage_errors(f"the folder {self.folder} cannot be changed"):
                if os.path.lexists(self.folder) and not self.folder.is_dir():
                    raise NotADirectoryError("it is a file, or a link to nothing")
                checkpoint_folder.clean(self.folder, saved)

        self._together.share("cleaning the folder of checkpoints", clean)
        return saved

    def lack_of_room(self, specs: Tree) -> str | None:
        """A warning where a save of such a state would not fit on the disk as it is now; `specs` as for `save`."""
        needed = sum(spec.size * np.dtype(spec.dtype).itemsize for _, spec in _paths(specs))
        free = shutil.disk_usage(next(path for path in (self.folder, *self.folder.parents) if path.exists())).free
        if needed <= free:
            return None
        return f"{_room(needed, free)} in {self.folder}: make room before the first save (checkpoint.every)"

    def save(self, step: int, state: Tree, specs: Tree, record: dict[str, Any]) -> None:
        """Starts saving. `specs`: ArraySpec of each array in logical shape. Returns when `state` may be donated.

        Waits for an earlier save that is still being written. StorageError where that one, or this one, fails.
        """
        self.wait()
        final = checkpoint_folder.step_folder(self.folder, step)
        partial = final.with_name(final.name + PARTIAL)
        arrays = _flatten(_logical(state, specs))
        described = {name: (tuple(x.shape), np.dtype(x.dtype).name) for name, x in arrays.items()}
        failing = f"step {step} could not be saved in {self.folder}"

        def make_room() -> None:
            with _storage_errors(failing):
                partial.mkdir(parents=True)
                needed, free = sum(x.nbytes for x in arrays.values()), shutil.disk_usage(partial).free
                if needed > free:
                    raise OSError(errno.ENOSPC, _room(needed, free))

        self._together.share(f"room for step {step}", make_room)
        with _storage_errors(failing):
            self._open_writer().save(partial / ARRAYS, args=_orbax().args.PyTreeSave(arrays))
        work = (partial, step, described, record)
        self.began = time.monotonic()
        self._finisher = threading.Thread(target=self._finish, args=work, name="checkpoint")
        self._finisher.start()

    def check(self) -> None:
        """Raises the StorageError of a save that failed in the background (or PeerError)."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            if isinstance(failure, MeshtrainError):
                raise failure
            raise StorageError(f"a checkpoint could not be saved in {self.folder}: {first_line(failure)}") from failure

    def wait(self) -> None:
        """Returns when nothing is being written; raises as `check` does."""
        if self._finisher is not None:
            self._finisher.join()
            self._finisher = None
        self.check()

    def close(self) -> None:
        """Waits for a running save and frees the writer; raises as `check` does."""
        try:
            self.wait()
        finally:
            if self._writer is not None:
                with contextlib.suppress(Exception):  # a failed save once more: it has been raised above
                    self._writer.close()
                self._writer = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.close()
        except StorageError as failure:
            if kind is None:
                raise
            self.say(f"warning: {failure}")  # the run is ending for another reason, which is the one to report

    def _open_writer(self) -> Any:
        if self._writer is None:
            _quieten_libraries()
            self._writer = _orbax().AsyncCheckpointer(_handler())
        return self._writer

    def _finish(self, partial: Path, step: int, described: dict, record: dict[str, Any]) -> None:
        """In the background: waits for the arrays, gives the step its name, then lets old steps go."""

        def complete() -> None:
            with _storage_errors(f"a checkpoint could not be saved in {self.folder}"):
                checkpoint_folder.complete(partial, step, described, record, self._together.me.count)
            policy = self.config.keep_last, self.config.keep_every, self.config.keep_best
            try:
                checkpoint_folder.retire(self.folder, *policy)
            except OSError as error:  # the new step is saved all the same
                self.say(f"warning: an old checkpoint in {self.folder} could not be deleted: {first_line(error)}")

        try:
            self._writer.wait_until_finished()
            if not (partial / ARRAYS / JOINED).is_file():
                raise StorageError(f"step {step} could not be saved: Orbax has not joined its parts in {partial}")
            checksums = functools.partial(checkpoint_folder.take_checksums, partial, self._together.me)
            self._together.agree(f"the checksums of step {step}", checksums, SECONDS)
            self._together.share(f"the name of step {step}", complete)
        except BaseException as failure:  # whatever it is, the loop must hear of it
            self._failure = failure
        finally:
            self.began = None


def restore(saved: Saved, specs: Tree, targets: Tree) -> Tree:
    """The state of a checkpoint as arrays on devices.

    specs: ArraySpec in logical shapes, what the checkpoint must hold; targets: the same tree of ShapeDtypeStruct with
    shardings, in physical shapes (padding comes back as zeros). InputError where trees, shapes or dtypes differ.
    """
    wanted = {path_name(path): spec for path, spec in _paths(specs)}
    _check_same(saved, saved.arrays, wanted)
    arrays = _read(saved, {path_name(path): target for path, target in _paths(targets)})
    return jax.tree.unflatten(jax.tree.structure(targets), list(arrays.values()))


def restore_params(saved: Saved, specs: Tree, targets: Tree) -> Tree:
    """Only the weights of a checkpoint (`specs` and `targets` are trees of the weights); errors as in `restore`."""
    wanted = {f"{PARAMS}/{path_name(path)}": spec for path, spec in _paths(specs)}
    stored = {name: array for name, array in saved.arrays.items() if name.startswith(f"{PARAMS}/")}
    _check_same(saved, stored, wanted, "model", "Use the model that it was made with, or another checkpoint.")
    arrays = _read(saved, {f"{PARAMS}/{path_name(path)}": target for path, target in _paths(targets)})
    return jax.tree.unflatten(jax.tree.structure(targets), list(arrays.values()))


def find(path: Path, say: Callable[[str], None], together: Together = ALONE) -> Saved:
    """The checkpoint at a path: a step's folder, a folder of steps, or a run's folder (then the newest whole step).

    All processes come to the same, also where a run saves there while they look.
    """
    path = path.absolute()
    try:
        if (path / checkpoint_folder.RECORD).exists():
            return checkpoint_folder.read(path)
    except checkpoint_folder.DamagedError as damage:
        raise InputError(f"{path} is no whole checkpoint: {damage}.") from None
    for folder in (path, path / "checkpoints"):
        if saved := checkpoint_folder.newest(folder, say, together):
            return saved
    missing = "" if path.exists() else " (there is no such folder)"
    raise InputError(
        f"{path} holds no whole checkpoint{missing}; give a run's folder or one of its checkpoints/step_... folders"
    )


def _read(saved: Saved, targets: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """The named arrays in their shardings; each process reads the slices of its devices."""
    ocp = _orbax()
    arguments = {
        name: ocp.ArrayRestoreArgs(
            sharding=target.sharding, global_shape=target.shape, dtype=target.dtype, strict=False
        )
        for name, target in targets.items()
    }
    partly = len(targets) < len(saved.arrays)
    reader = ocp.Checkpointer(_handler())
    try:
        arrays = reader.restore(
            saved.folder / ARRAYS,
            args=ocp.args.PyTreeRestore(item=targets, restore_args=arguments, partial_restore=partly),
        )
    except (OSError, ValueError) as error:
        raise StorageError(f"{saved.folder} could not be read: {first_line(error)}") from error
    finally:
        reader.close()
    return {name: arrays[name] for name in targets}


def _check_same(
    saved: Saved,
    stored: dict[str, tuple[tuple[int, ...], str]],
    wanted: dict[str, ArraySpec],
    what: str = "model and optimizer",
    remedy: str = "Use the config that it was made with, or another workdir.",
) -> None:
    """InputError that lists missing, extra and mis-shaped paths."""
    shapes = {name: (tuple(spec.shape), np.dtype(spec.dtype).name) for name, spec in wanted.items()}
    lines = _listed("missing in the checkpoint", [f"{n} {_text(shapes[n])}" for n in shapes if n not in stored])
    lines += _listed("extra in the checkpoint", [f"{n} {_text(stored[n])}" for n in stored if n not in shapes])
    different = [n for n in shapes if n in stored and stored[n] != shapes[n]]
    lines += _listed("different", [f"{n}: saved {_text(stored[n])}, wanted {_text(shapes[n])}" for n in different])
    if lines:
        raise InputError(
            f"the checkpoint {saved.folder} does not fit this {what}:\n" + "\n".join(lines) + f"\n{remedy}"
        )


def _room(needed: int, free: int) -> str:
    return f"a checkpoint needs {size_text(needed)} and {size_text(free)} are free"


def _listed(title: str, items: list[str]) -> list[str]:
    more = [f"    and {len(items) - _SHOWN} more"] if len(items) > _SHOWN else []
    return [f"  {title}:", *(f"    {item}" for item in items[:_SHOWN]), *more] if items else []


def _text(array: tuple[tuple[int, ...], str]) -> str:
    return f"{array[1]}{list(array[0])}"


def _logical(state: Tree, specs: Tree) -> Tree:
    """The state without the padding of its physical shapes. A cut dim is gathered: its real size need not divide."""

    def cut(spec: ArraySpec, x: jax.Array) -> jax.Array:
        if tuple(spec.shape) == tuple(x.shape):
            return x
        slices = tuple(slice(size) for size in spec.shape)
        sharding = None
        if isinstance(x.sharding, NamedSharding):
            axes = tuple(x.sharding.spec) + (None,) * (x.ndim - len(x.sharding.spec))
            kept = [axis if a == b else None for axis, a, b in zip(axes, spec.shape, x.shape, strict=True)]
            sharding = NamedSharding(x.sharding.mesh, PartitionSpec(*kept))
        return jax.jit(lambda x: x[slices], out_shardings=sharding)(x)

    return jax.tree.map(cut, specs, state, is_leaf=is_spec)


def _flatten(tree: Tree) -> dict[str, jax.Array]:
    return {path_name(path): x for path, x in _paths(tree)}


def _paths(tree: Tree) -> list[tuple[tuple[Any, ...], Any]]:
    return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_spec)[0]


def _orbax() -> Any:
    """Orbax, imported when the first checkpoint is read or written."""
    import orbax.checkpoint

    return orbax.checkpoint


def _handler() -> Any:
    """Arrays as they are (weights hardly compress) and without a record of the sharding they had."""
    handlers = _orbax().type_handlers
    array_handler = handlers.ArrayHandler(enable_write_sharding_file=False)
    registry = handlers.create_type_handler_registry((jax.Array, array_handler))
    return _orbax().PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)


def _quieten_libraries() -> None:
    """A failed write is one message of ours, so the traces that Orbax and TensorStore print are left out."""
    logger = logging.getLogger("absl")
    if _not_from_orbax not in logger.filters:
        logger.addFilter(_not_from_orbax)
        logging.getLogger("asyncio").addFilter(_heard_of)
        print_others = sys.unraisablehook

        def hook(unraisable: "sys.UnraisableHookArgs") -> None:
            if str(unraisable.exc_value) != "Event loop is closed":  # a write that ended after the first had failed
                print_others(unraisable)

        sys.unraisablehook = hook


def _heard_of(record: logging.LogRecord) -> bool:
    """False of a write that failed after another one had: the first failure is the one that is raised."""
    return "exception was never retrieved" not in record.getMessage()


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


@contextlib.contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what}: {first_line(error)}") from error
