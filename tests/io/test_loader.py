"""Batches: the rows of step s under every placement, on every process, from every start; errors that surface."""

import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from meshtrain.errors import InputError
from meshtrain.io.loader import Batches, evaluation_batches, local_rows
from meshtrain.io.mixture import Mixture
from meshtrain.io.rows import FIELDS, IntArray, Rows
from meshtrain.io.synthetic import Synthetic
from meshtrain.io.windows import HeldOutWindows, Windows
from meshtrain.layout import Layout, Placement, place, single_placement
from tests.io.sets import numbered, write_set

LENGTH = 16
PLACEMENTS: dict[str, dict[str, Any]] = {
    "replicated": {"mesh": {"x": 8}, "rules": {}},
    "batch": {"mesh": {"x": 8}, "rules": {"batch": "x"}},
    "batch and weights": {"mesh": {"x": 4, "y": 2}, "rules": {"batch": "x", "mlp": "y"}},
    "length": {"mesh": {"x": 8}, "rules": {"length": "x"}},
    "batch and length": {"mesh": {"x": 2, "y": 4}, "rules": {"batch": "x", "length": "y"}},
    "length slowest": {"mesh": {"y": 4, "x": 2}, "rules": {"batch": "x", "length": "y"}},
    "batch over two": {"mesh": {"x": 2, "y": 2, "z": 2}, "rules": {"batch": ("x", "z"), "length": "y"}},
}


def placement(name: str) -> Placement:
    return place(Layout.parse(PLACEMENTS[name], name=name))


@pytest.fixture
def source(tmp_path: Path) -> Windows:
    return Windows(write_set(tmp_path / "s", numbered(700)), LENGTH, seed=1)


def expected(source: Any, first: int, count: int) -> dict[str, np.ndarray]:
    index = np.arange(first, first + count)
    return {**source.rows(index), "index_B": index.astype(np.uint32)}


def assert_equal(batch: dict[str, jax.Array], rows: dict[str, np.ndarray]) -> None:
    assert set(batch) == set(rows)
    for name, values in rows.items():
        assert batch[name].dtype == values.dtype
        np.testing.assert_array_equal(np.asarray(batch[name]), values, err_msg=name)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_batch_is_its_samples_wherever_they_lie(source: Windows, name: str) -> None:
    where = placement(name)
    with Batches(source, where, global_batch=8, start_step=3, stop_step=6) as batches:
        for step, batch in zip(range(3, 6), batches, strict=True):
            assert_equal(batch, expected(source, 8 * step, 8))
            for field in FIELDS:
                assert batch[field].sharding == where.sharding("activations", ("batch", "length"), (8, LENGTH))
            for shard in batch["tokens"].addressable_shards:
                np.testing.assert_array_equal(
                    np.asarray(shard.data), expected(source, 8 * step, 8)["tokens"][shard.index]
                )


def test_any_start_gives_the_same_batches(source: Windows) -> None:
    """Steps 0..9 at one go, or broken off anywhere and started again under another placement."""
    whole = {}
    with Batches(source, placement("batch"), global_batch=8, stop_step=10) as batches:
        for step, batch in enumerate(batches):
            whole[step] = {name: np.asarray(values) for name, values in batch.items()}
    assert len(whole) == 10
    for start in (0, 1, 7, 9):
        with Batches(source, placement("batch and length"), global_batch=8, start_step=start, stop_step=10) as batches:
            for step, batch in zip(range(start, 10), batches, strict=True):
                assert_equal(batch, whole[step])
    assert not np.array_equal(whole[0]["tokens"], whole[1]["tokens"])  # they could differ


def test_without_a_stop_there_is_no_end(source: Windows) -> None:
    with Batches(source, single_placement(), global_batch=2, start_step=10**9) as batches:
        assert_equal(next(batches), expected(source, 2 * 10**9, 2))
        assert_equal(next(batches), expected(source, 2 * 10**9 + 2, 2))


def test_order_permutes_every_field_alike(source: Windows) -> None:
    order = np.random.default_rng(0).permutation(LENGTH)
    with Batches(source, placement("length"), global_batch=4, stop_step=1, order=order) as batches:
        rows = expected(source, 0, 4)
        assert_equal(next(batches), {k: v[:, order] if k in FIELDS else v for k, v in rows.items()})
    with pytest.raises(ValueError, match="not a permutation"):
        Batches(source, single_placement(), global_batch=4, order=np.zeros(LENGTH, int))


def test_the_order_of_the_layout_is_the_default(source: Windows) -> None:
    """A zigzag over 4 shards: device i of the length gets chunks i and 7 - i of 2 tokens, of every field."""
    declared = dict(mesh=dict(x=2, y=4), rules=dict(batch="x", length="y"), attention="ring", order="zigzag")
    columns = [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    with Batches(source, place(Layout.parse(declared)), global_batch=4, stop_step=1) as batches:
        batch, rows = next(batches), expected(source, 0, 4)
    assert_equal(batch, {k: v[:, columns] if k in FIELDS else v for k, v in rows.items()})
    held = batch["tokens"].addressable_shards
    shards = {(shard.index[0].start, shard.index[1].start): np.asarray(shard.data) for shard in held}
    np.testing.assert_array_equal(shards[2, 4], rows["tokens"][2:, [2, 3, 12, 13]])


class Recording:
    """A source that remembers which rows it was asked for."""

    def __init__(self, source: Any) -> None:
        self.source, self.asked = source, []  # type: ignore[var-annotated]
        self.length, self.num_rows = source.length, source.num_rows

    def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
        self.asked.append(index.tolist())
        return self.source.rows(index, sample)


@pytest.mark.parametrize("name", ["replicated", "length", "batch and length"])
def test_a_row_is_read_once_however_many_devices_hold_it(source: Windows, name: str) -> None:
    recording = Recording(source)
    with Batches(recording, placement(name), global_batch=8, stop_step=1) as batches:
        next(batches)
    assert recording.asked == [list(range(8))]


class HalfOfASharding:
    """What a process sees that owns some of a sharding's devices."""

    def __init__(self, sharding: Any, devices: list[Any]) -> None:
        self.sharding, self.devices = sharding, devices

    def addressable_devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, Any]:
        return {d: i for d, i in self.sharding.devices_indices_map(shape).items() if d in self.devices}


@pytest.mark.parametrize(
    ("name", "processes", "rows"),
    [
        ("batch", 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("batch", 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("length", 2, [[*range(8)], [*range(8)]]),
        ("batch and length", 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("length slowest", 2, [[*range(8)], [*range(8)]]),
        ("batch over two", 4, [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]),
    ],
)
def test_a_process_reads_the_rows_of_its_devices(name: str, processes: int, rows: list[list[int]]) -> None:
    sharding = placement(name).sharding("activations", ("batch", "length"), (8, LENGTH))
    devices = jax.devices()
    size = len(devices) // processes
    for process in range(processes):
        mine = HalfOfASharding(sharding, devices[process * size : (process + 1) * size])
        assert local_rows(mine, (8, LENGTH)).tolist() == rows[process]  # type: ignore[arg-type]


def test_rows_that_are_not_neighbours_find_their_devices(source: Windows) -> None:
    """A mesh whose devices are not in order: a process may hold rows 0, 1, 4, 5."""
    shuffled = Mesh(np.array(jax.devices())[[0, 4, 1, 5, 2, 6, 3, 7]], ("x",))
    where = Placement(Layout.parse({"mesh": {"x": 8}, "rules": {"batch": "x"}}, name="shuffled"), shuffled)
    sharding = where.sharding("activations", ("batch", "length"), (16, LENGTH))
    assert local_rows(HalfOfASharding(sharding, jax.devices()[:2]), (16, LENGTH)).tolist() == [0, 1, 4, 5]  # type: ignore[arg-type]
    with Batches(source, where, global_batch=16, stop_step=1) as batches:
        assert_equal(next(batches), expected(source, 0, 16))


@pytest.mark.parametrize("num_devices", [1, 2, 8])
@pytest.mark.parametrize("global_batch", [1, 4, 8, 16])
def test_evaluation_sees_every_token_once(tmp_path: Path, global_batch: int, num_devices: int) -> None:
    documents = [[7] * (5 + 11 * n % 30) for n in range(37)]
    held_out = HeldOutWindows(write_set(tmp_path / "s", documents), LENGTH)
    rule = {"batch": "x"} if global_batch % num_devices == 0 else {"length": "x"}
    where = place(Layout.parse({"mesh": {"x": num_devices}, "rules": rule}, name="eval"), num_devices)
    with evaluation_batches(held_out, where, global_batch=global_batch) as batches:
        got = [{name: np.asarray(values) for name, values in batch.items()} for batch in batches]
    assert len(got) == -(-held_out.num_rows // global_batch)
    assert sum(int((batch["labels"] >= 0).sum()) for batch in got) == sum(map(len, documents))
    assert sum(int((batch["segments"] > 0).sum()) for batch in got) == sum(map(len, documents)) + 37


def test_a_source_without_end_is_not_evaluated() -> None:
    with pytest.raises(ValueError, match="without end"):
        evaluation_batches(Synthetic(10, 4), single_placement(), global_batch=1)


def test_an_error_in_a_reader_surfaces_with_file_sample_and_id(tmp_path: Path) -> None:
    sets = [write_set(tmp_path / name, numbered(210), shard_tokens=1000) for name in ("a", "b")]
    shard = np.fromfile(tmp_path / "b" / "shard-00000.bin", "<u4")
    shard[100] = 1_234_567
    shard.tofile(tmp_path / "b" / "shard-00000.bin")
    mixed = Mixture(tuple(Windows(tokens, LENGTH) for tokens in sets), (1.0, 1.0))
    with Batches(mixed, placement("batch"), global_batch=8) as batches:
        began = time.monotonic()
        with pytest.raises(InputError, match=r"b/shard-00000.bin: token id 1234567 at token 100 .*by sample \d+\)"):
            list(islice(batches, 5))
        assert time.monotonic() - began < 10
    deadline = time.monotonic() + 10
    while any("grain" in thread.name for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [thread.name for thread in threading.enumerate() if "grain" in thread.name]


def test_what_does_not_divide_is_told_before_reading(source: Windows) -> None:
    with pytest.raises(InputError, match="batch"):
        Batches(source, placement("batch"), global_batch=6)
    with pytest.raises(InputError, match="global_batch: 0"):
        Batches(source, single_placement(), global_batch=0)


def test_the_loader_reads_ahead_and_counts_the_wait(source: Windows) -> None:
    class Slow(Recording):
        def rows(self, index: IntArray, sample: IntArray | None = None) -> Rows:
            time.sleep(0.02)
            return super().rows(index, sample)

    slow = Slow(source)
    with Batches(slow, single_placement(), global_batch=2, num_ahead=3, num_threads=1) as batches:
        next(batches)
        deadline = time.monotonic() + 10
        while len(slow.asked) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(slow.asked) == 4  # the one that was given, and three ahead
        assert 0.01 < batches.seconds_waited < 5


def test_sample_ids_wrap_at_32_bits() -> None:
    with Batches(
        Synthetic(10, 4), single_placement(), global_batch=4, start_step=2**30, stop_step=2**30 + 1
    ) as batches:
        assert np.asarray(next(batches)["index_B"]).tolist() == [0, 1, 2, 3]
