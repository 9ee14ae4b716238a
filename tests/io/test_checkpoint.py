"""Checkpoints belong to no layout, are complete or not there, and say what does not fit (cases K1 to K4, L4)."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshtrain.errors import InputError, StorageError
from meshtrain.io import checkpoint, checkpoint_folder
from meshtrain.io.checkpoint import CheckpointConfig, Checkpoints
from meshtrain.layout import ArraySpec

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
SPECS = {
    "params": {
        "table": ArraySpec((257, 8), F32, ("vocab", "embed")),
        "layers": {"up": ArraySpec((3, 8, 16), F32, ("layers", "embed", "mlp"))},
    },
    "opt_state": (ArraySpec((), I32, ()), {"table": ArraySpec((257, 8), F32, ("vocab", "embed"))}),
    "step": ArraySpec((), I32, ()),
}
ROWS: dict[str, dict[str, Any]] = {
    "one": {},
    "embed": {"embed": "x"},
    "both": {"vocab": "y", "embed": "x", "mlp": "y"},
    "mlp": {"mlp": ("x", "y")},
}


def shardings(name: str, sizes: tuple[int, int]) -> Callable[[ArraySpec], jax.ShapeDtypeStruct]:
    """Physical arrays under one of ROWS on a mesh x, y: the vocabulary padded to a multiple of 4."""
    mesh = Mesh(np.array(jax.devices()[: sizes[0] * sizes[1]]).reshape(sizes), ("x", "y"))

    def physical(spec: ArraySpec) -> jax.ShapeDtypeStruct:
        cut = ROWS[name].get("vocab") is not None
        shape = tuple(
            -(-n // 4) * 4 if cut and dim == "vocab" else n for dim, n in zip(spec.dims, spec.shape, strict=True)
        )
        sharding = NamedSharding(mesh, PartitionSpec(*(ROWS[name].get(dim) for dim in spec.dims)))
        return jax.ShapeDtypeStruct(shape, spec.dtype, sharding=sharding)

    return physical


def targets(name: str, sizes: tuple[int, int] = (2, 4), specs: Any = None) -> Any:
    return jax.tree.map(shardings(name, sizes), specs or SPECS, is_leaf=lambda x: isinstance(x, ArraySpec))


def values(seed: int = 0) -> Any:
    """Logical values; the float bits are arbitrary, so that nothing but the same bits can compare equal."""
    rng = np.random.default_rng(seed)

    def draw(spec: ArraySpec) -> np.ndarray:
        return np.asarray(rng.integers(1, 2**30, spec.shape, np.int32)).view(spec.dtype)

    return jax.tree.map(draw, SPECS, is_leaf=lambda x: isinstance(x, ArraySpec))


def on_devices(logical: Any, where: Any) -> Any:
    """The values in their physical shapes (padding: zeros) and shardings."""

    def put(x: np.ndarray, target: jax.ShapeDtypeStruct) -> jax.Array:
        full = np.zeros(target.shape, target.dtype)
        full[tuple(slice(n) for n in x.shape)] = x
        return jax.device_put(full, target.sharding)

    return jax.tree.map(put, logical, where)


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x).view(np.int32), np.asarray(y).view(np.int32)) for x, y in pairs)


def save(folder: Path, *steps: int, said: list[str] | None = None, **config: Any) -> list[str]:
    """Saves `values(step)` at each step; returns what was said."""
    said = [] if said is None else said
    store = Checkpoints(folder, CheckpointConfig(**config), said.append)
    for step in steps:
        store.save(step, on_devices(values(step), targets("both")), SPECS, {"rows": 4 * step})
    store.close()
    return said


def newest(folder: Path, said: list[str] | None = None) -> checkpoint_folder.Saved | None:
    return Checkpoints(folder, CheckpointConfig(), (said if said is not None else []).append).newest()


@pytest.mark.parametrize("saved_under", ["one", "both", "embed"])
def test_every_layout_reads_what_another_wrote_bitwise(tmp_path: Path, saved_under: str) -> None:
    store = Checkpoints(tmp_path, CheckpointConfig(), print)
    store.save(3, on_devices(values(), targets(saved_under)), SPECS, {"rows": 12, "mesh": {"x": 2}})
    store.close()
    saved = store.newest()
    assert saved is not None
    assert (saved.step, saved.record) == (3, {"rows": 12, "mesh": {"x": 2}})
    assert saved.arrays["params/table"] == ((257, 8), "float32")  # exactly the vocabulary, however it was padded
    for name, sizes in (("one", (1, 1)), ("embed", (4, 1)), ("both", (2, 4)), ("both", (1, 4)), ("mlp", (2, 2))):
        where = targets(name, sizes)
        restored = checkpoint.restore(saved, SPECS, where)
        assert same(restored, on_devices(values(), where))
        assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, where)


def test_the_files_know_nothing_of_a_layout(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert not list(tmp_path.rglob("_sharding"))


def test_a_state_may_be_donated_as_soon_as_save_returns(tmp_path: Path) -> None:
    scramble = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 + 7, tree), donate_argnums=0)
    store = Checkpoints(tmp_path, CheckpointConfig(), print)
    state = on_devices(values(), targets("both"))
    store.save(1, state, SPECS, {})
    for _ in range(3):
        state = scramble(state)
    jax.block_until_ready(state)
    store.close()
    saved = store.newest()
    assert saved is not None
    assert same(checkpoint.restore(saved, SPECS, targets("one")), on_devices(values(), targets("one")))


def test_the_comparison_of_bits_bites() -> None:
    other = values()
    other["opt_state"][1]["table"][256, 7] = np.nextafter(other["opt_state"][1]["table"][256, 7], F32.type(0))
    assert same(values(), values())
    assert not same(values(), other)


def test_writes_that_fail_after_the_first_are_not_told(tmp_path: Path) -> None:
    save(tmp_path, 1)
    logger = logging.getLogger("asyncio")
    told = [
        bool(logger.filter(logger.makeRecord("asyncio", logging.ERROR, "", 0, text, (), None)))
        for text in ("Task exception was never retrieved", "something else")
    ]
    assert told == [False, True]


def test_policies_keep_the_last_and_every_nth(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4, 5, 6, 7, keep_last=2, keep_every=3)
    assert checkpoint_folder.steps(tmp_path) == [3, 6, 7]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000003", "step_00000006", "step_00000007"]


def test_the_best_steps_stay_beside_the_newest(tmp_path: Path) -> None:
    """Case K3. A step without an evaluation, or with one that is not finite, is none of the best."""
    losses = {1: 3.0, 2: 2.0, 3: None, 4: float("nan"), 5: 2.0, 6: 1.5, 7: 4.0, 8: 5.0}
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=2), print)
    state = on_devices(values(), targets("one"))
    kept = []
    for step, loss in losses.items():
        store.save(step, state, SPECS, {checkpoint_folder.EVAL_LOSS: loss})
        store.wait()
        kept.append(checkpoint_folder.steps(tmp_path))
    store.close()
    assert kept == [[1], [1, 2], [1, 2, 3], [1, 2, 4], [2, 5], [2, 6], [2, 6, 7], [2, 6, 8]]


def truncate(folder: Path) -> None:
    largest = max((path for path in (folder / "arrays").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def flip(folder: Path) -> None:
    largest = max((path for path in (folder / "arrays").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)


def drop(folder: Path) -> None:
    next(path for path in (folder / "arrays" / "d").iterdir()).unlink()


def edit_record(folder: Path) -> None:
    path = folder / "checkpoint.json"
    path.write_text(path.read_text().replace('"rows": 12', '"rows": 13'))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated file": (truncate, "bytes instead of"),
    "flipped bit": (flip, "another checksum"),
    "missing file": (drop, "is missing"),
    "missing record": (lambda f: (f / "checkpoint.json").unlink(), "checkpoint.json is missing"),
    "torn record": (lambda f: os.truncate(f / "checkpoint.json", 100), "cannot be read"),
    "changed record": (edit_record, "not as it was written"),
    "empty folder": (empty, "it is empty"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_step_is_skipped_and_said(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 1, 2, 3, keep_last=3)
    break_it, words = DAMAGES[damage]
    break_it(tmp_path / "step_00000003")
    (tmp_path / "step_00000009.partial" / "arrays").mkdir(parents=True)
    said: list[str] = []
    saved = newest(tmp_path, said)
    assert saved is not None
    assert saved.step == 2
    assert same(checkpoint.restore(saved, SPECS, targets("one")), on_devices(values(2), targets("one")))
    assert any(line.startswith("skipped step_00000003:") and words in line for line in said)
    assert any("step_00000009.partial" in line for line in said)
    # What is left over is out of the way, nothing good is deleted, and the same step can be saved again.
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["step_00000001", "step_00000002", "step_00000003.damaged"]
    save(tmp_path, 3, keep_last=3)
    assert checkpoint_folder.steps(tmp_path) == [1, 2, 3]
    assert newest(tmp_path).step == 3  # type: ignore[union-attr]
    assert not list(tmp_path.glob("*.damaged"))


@pytest.mark.parametrize("name", ["checkpoint.json", "arrays"])
def test_a_step_that_cannot_be_read_now_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A disk or a permission that fails for a while: an error with storage's code, and the step stays in its place."""
    save(tmp_path, 1, 2)
    unreadable, read = tmp_path / "step_00000002" / name, open

    def failing(path: Any, *more: Any, **options: Any) -> Any:
        if Path(path).is_relative_to(unreadable):
            raise OSError(5, "Input/output error")
        return read(path, *more, **options)

    monkeypatch.setattr(checkpoint_folder, "open", failing, raising=False)
    with pytest.raises(StorageError, match=r"cannot be read now \(Input/output error\)"):
        newest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000001", "step_00000002"]


def newer_format(folder: Path) -> None:
    path = folder / "checkpoint.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("step_00000007"))


@pytest.mark.parametrize(
    ("change", "words"),
    [(newer_format, "newer version: it has format 2"), (rename, "holds step 3: it was renamed")],
)
def test_a_step_that_is_whole_and_not_for_us_is_never_put_aside(
    tmp_path: Path, change: Callable[[Path], None], words: str
) -> None:
    save(tmp_path, 2, 3)
    change(tmp_path / "step_00000003")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InputError, match=words):
        newest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_links_and_files_in_the_place_of_steps_end_nothing(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "other disk"
    save(folder, 1)
    (folder / "step_00000001").rename(elsewhere)
    (folder / "step_00000001").symlink_to(elsewhere)
    (folder / "step_50").mkdir()  # no name of ours
    (folder / "step_00000009").write_text("a file")
    (folder / "step_00000008.partial").write_text("a file")
    saved = newest(folder)
    assert saved is not None
    assert saved.step == 1
    save(folder, 2, keep_last=1)
    assert sorted(path.name for path in folder.iterdir()) == ["step_00000002", "step_50"]
    assert checkpoint_folder.read(elsewhere).step == 1  # what a link leads to is not ours to delete


def test_a_folder_without_checkpoints_has_no_newest(tmp_path: Path) -> None:
    assert newest(tmp_path / "nothing") is None
    assert newest(tmp_path) is None


@pytest.mark.parametrize("name", ["lr=[1e-3]", "a*", "a?", "a\\b", "a\udcffb"])
def test_a_folder_that_orbax_takes_for_a_pattern_is_refused(tmp_path: Path, name: str) -> None:
    """There it would leave out, without an error, what it had written: a checkpoint that nobody could read."""
    with pytest.raises(InputError, match="checkpoints cannot be saved"):
        Checkpoints(tmp_path / name, CheckpointConfig(), print)


def test_a_save_whose_parts_were_not_joined_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_folder, "refuse_pattern", lambda folder: None)
    with pytest.raises(StorageError, match="has not joined its parts"):
        save(tmp_path / "[x]", 1)
    assert checkpoint_folder.steps(tmp_path / "[x]") == []


def test_an_old_step_that_cannot_be_deleted_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system keeps the files of a folder for as long as another process reads them."""
    remove = checkpoint_folder._remove

    def held(path: Path) -> None:
        if "00000001" in path.name:
            raise OSError(39, "Directory not empty")
        remove(path)

    monkeypatch.setattr(checkpoint_folder, "_remove", held)
    said = save(tmp_path, 1, 2, 3, 4, keep_last=1)
    assert checkpoint_folder.steps(tmp_path) == [4]
    assert any("an old checkpoint" in text and "Directory not empty" in text for text in said)
    assert newest(tmp_path) is not None  # a start is not held up by it either
    monkeypatch.undo()
    save(tmp_path, 5, keep_last=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000005"]


def test_a_step_whose_loss_cannot_be_read_now_may_be_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, 2, 3, keep_last=5)
    read = checkpoint_folder.read_record

    def failing(folder: Path) -> Any:
        if folder.name.endswith("1"):
            raise StorageError("an I/O error")
        return read(folder)

    monkeypatch.setattr(checkpoint_folder, "read_record", failing)
    checkpoint_folder.retire(tmp_path, 1, None, 1)
    assert checkpoint_folder.steps(tmp_path) == [1, 3]


def test_a_relative_folder_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("relative"), 1)
    saved = checkpoint.find(Path("relative"), print)
    assert same(checkpoint.restore(saved, SPECS, targets("one")), on_devices(values(1), targets("one")))


def test_the_only_step_damaged_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    flip(tmp_path / "step_00000001")
    assert newest(tmp_path) is None


def other_specs() -> Any:
    wanted = dict(SPECS)
    wanted["params"] = {
        "table": ArraySpec((300, 8), F32, ("vocab", "embed")),
        "head": ArraySpec((8, 257), F32, ("embed", "vocab")),
    }
    wanted["step"] = ArraySpec((), F32, ())
    return wanted


def test_another_structure_is_listed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    saved = newest(tmp_path)
    assert saved is not None
    with pytest.raises(InputError) as error:
        checkpoint.restore(saved, other_specs(), targets("one", specs=other_specs()))
    text = str(error.value)
    assert "missing in the checkpoint:\n    params/head float32[8, 257]" in text
    assert "extra in the checkpoint:\n    params/layers/up float32[3, 8, 16]" in text
    assert "params/table: saved float32[257, 8], wanted float32[300, 8]" in text
    assert "step: saved int32[], wanted float32[]" in text


def test_weights_alone_can_be_loaded(tmp_path: Path) -> None:
    said: list[str] = []
    save(tmp_path / "checkpoints", 1, 2)
    for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "step_00000002"):
        saved = checkpoint.find(path, said.append)
        assert saved.step == 2
    params = checkpoint.restore_params(saved, SPECS["params"], targets("both")["params"])
    assert same(params, on_devices(values(2), targets("both"))["params"])
    with pytest.raises(InputError, match="params/head"):
        checkpoint.restore_params(saved, other_specs()["params"], targets("one", specs=other_specs())["params"])
    with pytest.raises(InputError, match="holds no whole checkpoint"):
        checkpoint.find(tmp_path / "nothing", said.append)
    flip(tmp_path / "checkpoints" / "step_00000002")
    with pytest.raises(InputError, match="another checksum"):
        checkpoint.find(tmp_path / "checkpoints" / "step_00000002", said.append)


def check_for(store: Checkpoints, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        store.check()
        time.sleep(0.05)


def test_a_save_that_fails_in_the_background_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    store = Checkpoints(tmp_path, CheckpointConfig(keep_last=1), print)
    state = on_devices(values(2), targets("both"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_folder, "complete", full)
    store.save(2, state, SPECS, {})
    with pytest.raises(StorageError, match="No space left on device"):
        check_for(store, seconds=20)
    store.close()
    monkeypatch.undo()
    assert newest(tmp_path).step == 1  # type: ignore[union-attr]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Checkpoints(tmp_path / "file" / "checkpoints", CheckpointConfig(), print)
    with pytest.raises(StorageError, match="could not be saved"):
        store.save(1, on_devices(values(), targets("one")), SPECS, {})


def test_bad_policies_are_refused() -> None:
    with pytest.raises(InputError, match=r"checkpoint\.keep_last: 0 must be at least 1"):
        CheckpointConfig(keep_last=0)


SAVER = """
import itertools, sys
from pathlib import Path
import jax
from meshtrain.io.checkpoint import CheckpointConfig, Checkpoints
from tests.io.test_checkpoint import SPECS, on_devices, targets, values
store = Checkpoints(Path(sys.argv[1]), CheckpointConfig(keep_last=2), print)
for step in itertools.count(1):
    store.save(step, on_devices(values(step), targets("both")), SPECS, {"rows": step})
    if step == 2:
        print("saving", flush=True)
"""


def freeze(pid: int) -> None:
    """Stops a process; returns when all of its threads stand still."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        if set(states) == {"T"}:
            return
        time.sleep(0.001)
    raise TimeoutError(f"process {pid} did not stop: {states}")


@pytest.mark.slow
def test_killed_at_any_moment_of_a_save_a_complete_step_is_left(tmp_path: Path) -> None:
    """Case K2. A stopped process's folder is what kill -9 leaves; 20 such moments of a process that only saves."""
    folder = tmp_path / "checkpoints"
    root = Path(__file__).parents[2]
    child = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(folder)], cwd=root, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "saving\n"
        rng = np.random.default_rng(0)
        found: list[int] = []
        partial = 0
        for number in range(100):
            if number >= 20 and partial >= 5 and found[-1] > found[0]:
                break  # enough of them in the middle of a save, on a machine as busy as this one
            time.sleep(float(rng.uniform(0.01, 0.15)))
            freeze(child.pid)
            left = tmp_path / f"left-{number}"
            shutil.copytree(folder, left)
            child.send_signal(signal.SIGCONT)
            partial += any(path.name.endswith((".partial", ".deleted")) for path in left.iterdir())
            saved = newest(left)
            assert saved is not None
            assert saved.record == {"rows": saved.step}
            restored = checkpoint.restore(saved, SPECS, targets("one"))
            assert same(restored, on_devices(values(saved.step), targets("one")))
            assert not [path for path in left.iterdir() if path.suffix]  # leftovers are removed
            found.append(saved.step)
            shutil.rmtree(left)
        assert found == sorted(found)
        assert found[-1] > found[0]
        assert partial >= 5  # or else hardly a kill came in the middle of a save, and nothing was tested
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_the_record_is_readable_json(tmp_path: Path) -> None:
    save(tmp_path, 5)
    stored = json.loads((tmp_path / "step_00000005" / "checkpoint.json").read_text())
    assert stored["step"] == 5
    assert stored["arrays"]["opt_state/1/table"] == [[257, 8], "float32"]
    assert set(stored["files"]) == {
        str(path.relative_to(tmp_path / "step_00000005"))
        for path in (tmp_path / "step_00000005" / "arrays").rglob("*")
        if path.is_file()
    }
