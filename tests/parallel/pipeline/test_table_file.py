"""A user's own schedule: what was written is read, and what is no schedule is an error that names the place."""

from pathlib import Path

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.schedule import schedule
from meshtrain.parallel.pipeline.table_file import read_table, write_table
from meshtrain.parallel.pipeline.timing import lock_step


@pytest.mark.parametrize(("name", "v"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb_h1", 1)])
def test_round_trip(name: str, v: int, tmp_path: Path) -> None:
    for table in (schedule(name, 4, 6, v), lock_step(schedule(name, 4, 6, v))):
        path = tmp_path / "mine.csv"
        write_table(table, path)
        read = schedule(str(path), 4, 6, v)
        np.testing.assert_array_equal(read.microbatch, table.microbatch)
        np.testing.assert_array_equal(read.chunk, table.chunk)


GOOD = "tick,stage,op,microbatch\n0,0,F,0\n1,1,F,0\n2,1,B,0\n3,0,B,0\n"


def test_chunk_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(GOOD)
    assert read_table(path).num_chunks == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["first line"]),
        ("tick,stage,op,microbatch\n", ["no op"]),
        ("tick,stage,microbatch\n0,0,0\n", ["op missing"]),
        (GOOD + "4,0,X,0\n", ["line 6", "'X'"]),
        (GOOD + "four,0,F,0\n", ["line 6", "tick 'four'"]),
        (GOOD + "0,0,F,1\n", ["stage 0", "two ops F", "tick 0"]),
        (GOOD.replace("3,0,B,0\n", ""), ["B of microbatch 0 on stage 0 is missing"]),
        (GOOD.replace("1,1,F", "0,1,F"), ["F of microbatch 0 on stage 1", "tick 0", "one tick later"]),
    ],
)
def test_bad_files(text: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_table(path)
    assert all(word in str(error.value) for word in words), error.value


def test_a_file_made_for_other_sizes(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    write_table(schedule("1f1b", 4, 6), path)
    for arguments, words in {(2, 6): "stages", (4, 8): "microbatches", (4, 6, 2): "repeats"}.items():
        with pytest.raises(InputError, match=words):
            schedule(str(path), *arguments)
