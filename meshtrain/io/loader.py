"""Batches for the devices: step s gets the samples [s * B, (s + 1) * B), wherever the run was started from.

Each process reads only the rows that its devices hold, each of them once, in threads that run ahead of the training
(grain). An error in a thread is raised where the batch is asked for.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meshtrain.errors import InputError
from meshtrain.io.rows import IntArray, Rows, Source, batch_fields

if TYPE_CHECKING:
    import jax

    from meshtrain.layout import Placement

NUM_THREADS = 2  # rows are copied at memory speed; more threads only contend for the interpreter
NUM_AHEAD = 4  # batches that are read and not yet asked for
ENDLESS = 1 << 60

Batch = dict[str, "jax.Array"]


class Batches(Iterator[Batch]):
    """Batches of global arrays: rows.FIELDS, each int32 [global_batch, length], and "index_B" uint32 [global_batch].

    packed: whether rows hold documents to keep apart; if not, the batch has no "segments".

    The tokens of a row stand in the layout's order (or in `order`): what arrives on a device is what it works on.
    `seconds_waited` sums the time that `next` spent waiting for rows: what the data costs the training.
    """

    def __init__(
        self,
        source: Source,
        place: "Placement",
        *,
        global_batch: int,
        start_step: int = 0,
        stop_step: int | None = None,
        order: IntArray | None = None,
        packed: bool = True,
        num_threads: int = NUM_THREADS,
        num_ahead: int = NUM_AHEAD,
    ) -> None:
        import grain

        from meshtrain.layout.order import row_order

        if global_batch < 1:
            raise InputError(f"global_batch: {global_batch} must be at least 1.")
        order = row_order(place, source.length) if order is None else order
        if order is not None and not np.array_equal(np.sort(order), np.arange(source.length)):
            raise ValueError(f"order is not a permutation of the {source.length} columns of a row")
        self.seconds_waited = 0.0
        self._source, self._global_batch, self._order = source, global_batch, order
        self._fields = batch_fields(packed)
        shape = (global_batch, source.length)
        self._sharding = place.sharding("activations", ("batch", "length"), shape)
        self._index_sharding = place.sharding("activations", ("batch",), shape[:1])
        self._mine = local_rows(self._sharding, shape)
        stop = ENDLESS if stop_step is None else max(stop_step, start_step)
        steps = grain.MapDataset.range(start_step, stop).map(self._read)
        options = grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=max(num_ahead, num_threads))
        self._steps = iter(steps.to_iter_dataset(options, allow_nones=False))

    def __next__(self) -> Batch:
        began = time.perf_counter()
        try:
            rows, step = next(self._steps)
        except BaseException:
            self.close()
            raise
        self.seconds_waited += time.perf_counter() - began
        return self._place(rows, step)

    def close(self) -> None:
        """Stop reading ahead; the iterator cannot be used any more."""
        self._steps.close()

    def __enter__(self) -> "Batches":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self, step: int) -> tuple[Rows, int]:
        """This process's rows of a step, on the host."""
        rows = self._source.rows(step * self._global_batch + self._mine)
        if self._order is not None:
            rows = {name: np.ascontiguousarray(values[:, self._order]) for name, values in rows.items()}
        return rows, step

    def _place(self, rows: Rows, step: int) -> Batch:
        """Global arrays from this process's rows."""
        import jax

        shape = (self._global_batch, self._source.length)

        def part(values: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
            first, stop, _ = index[0].indices(shape[0])
            begin = int(np.searchsorted(self._mine, first))
            return values[begin : begin + stop - first, index[1]]

        samples = (np.arange(shape[0]) + step * self._global_batch).astype(np.uint32)  # modulo 2^32
        batch: Batch = {
            name: jax.make_array_from_callback(shape, self._sharding, partial(part, rows[name]))
            for name in self._fields
        }
        batch["index_B"] = jax.make_array_from_callback(shape[:1], self._index_sharding, lambda index: samples[index])
        return batch


def evaluation_batches(source: Source, place: "Placement", *, global_batch: int, **options: Any) -> Batches:
    """Every row of a finite source once, in order; the last batch is filled up with rows of padding."""
    if source.num_rows is None:
        raise ValueError("a source without end cannot be evaluated")
    return Batches(source, place, global_batch=global_batch, stop_step=-(-source.num_rows // global_batch), **options)


def local_rows(sharding: "jax.sharding.Sharding", shape: tuple[int, ...]) -> np.ndarray:
    """The rows of an array of `shape` of which this process's devices hold any part, sorted, each once."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    held = {index[0].indices(shape[0]) for index in indices if index is not None}
    return np.unique(np.concatenate([np.arange(*bounds) for bounds in held]))
