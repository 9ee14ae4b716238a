"""The pictures: width is time, and every op is in them."""

import textwrap

from meshtrain.parallel.pipeline.picture import gantt, summary
from meshtrain.parallel.pipeline.schedule import schedule
from meshtrain.parallel.pipeline.timing import lock_step


def test_asynchronous() -> None:
    assert gantt(schedule("1f1b", 3, 4)) == textwrap.dedent("""\
        stage 0 |F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3|
        stage 1 |.. F0 F1 .. B0 F2 B1 F3 B2 .. B3 ..|
        stage 2 |.. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..|""")


def test_lock_step() -> None:
    assert gantt(lock_step(schedule("1f1b", 3, 4))) == textwrap.dedent("""\
        stage 0 |F0 F1 F2 .. F3 .. .. B0 .. B1 B2 B3|
        stage 1 |.. F0 F1 .. F2 B0 F3 B1 .. B2 B3 ..|
        stage 2 |.. .. F0 B0 F1 B1 F2 B2 F3 B3 .. ..|""")


def test_every_op_is_drawn() -> None:
    for name, v in (("gpipe", 1), ("interleaved", 3), ("zb_h1", 1)):
        table = schedule(name, 4, 12, v)
        for picture in (gantt(table), gantt(lock_step(table))):
            assert picture.count("F") == picture.count("B") == 4 * 12 * v
            assert len({len(line) for line in picture.splitlines()}) == 1


def test_summary() -> None:
    table = schedule("1f1b", 4, 8)
    text = summary(table, lock_step(table))
    assert "27.27% asynchronous, 27.27% as run" in text
    assert "at most 4 asynchronous, 7 as run" in text
