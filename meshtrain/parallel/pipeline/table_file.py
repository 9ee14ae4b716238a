"""A schedule in a file, so that a user can bring their own: CSV with the columns tick, stage, op, microbatch, chunk.

One row for each op, in any order; op is F, B or W; everything is numbered from 0; the column chunk may be left out.
"""

import csv
from pathlib import Path

import numpy as np

from meshtrain.errors import InputError
from meshtrain.parallel.pipeline.table import IDLE, OPS, Table, check_table

COLUMNS = ("tick", "stage", "op", "microbatch", "chunk")


def write_table(table: Table, path: Path) -> None:
    """Write every op of the table, tick by tick."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for tick, op, stage in np.argwhere(table.microbatch != IDLE):
            cell = (tick, op, stage)
            writer.writerow((tick, stage, OPS[op], table.microbatch[cell], table.chunk[cell]))


def read_table(path: Path) -> Table:
    """The checked table of a file; InputError, with the line, for what is no schedule."""
    if not path.is_file():
        raise InputError(f"pipeline.schedule: there is no file {path}.")
    with path.open(newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        missing = set(COLUMNS[:-1]) - set(reader.fieldnames or ())
        if missing:
            raise InputError(
                f"pipeline.schedule {path}: the first line must name the columns {','.join(COLUMNS)};"
                f" {', '.join(sorted(missing))} missing."
            )
        rows = [_row(path, reader.line_num, row) for row in reader]
    if not rows:
        raise InputError(f"pipeline.schedule {path}: no op in it.")
    tick, stage, op, microbatch, chunk = (np.array(column) for column in zip(*rows, strict=True))
    shape = (tick.max() + 1, len(OPS), stage.max() + 1)
    microbatches, chunks = np.full(shape, IDLE), np.full(shape, IDLE)
    for row, cell in enumerate(zip(tick, op, stage, strict=True)):
        if microbatches[cell] != IDLE:
            raise InputError(
                f"pipeline.schedule {path}: stage {cell[2]} has two ops {OPS[cell[1]]} at tick {cell[0]}; one of each"
                " kind fits into a tick."
            )
        microbatches[cell], chunks[cell] = microbatch[row], chunk[row]
    table = Table(path.name, microbatches, chunks, int(microbatch.max()) + 1, int(chunk.max()) + 1)
    check_table(table)
    return table


def _row(path: Path, line: int, row: dict[str, str]) -> tuple[int, int, int, int, int]:
    where = f"pipeline.schedule {path}, line {line}"
    op = (row["op"] or "").strip().upper()
    if len(op) != 1 or op not in OPS:
        raise InputError(f"{where}: op {row['op']!r} is not one of {', '.join(OPS)}.")
    numbers = []
    for column in ("tick", "stage", "microbatch", "chunk"):
        text = (row.get(column) or ("0" if column == "chunk" else "")).strip()
        if not text.isdecimal():
            raise InputError(f"{where}: {column} {text!r} is not a whole number from 0 on.")
        numbers.append(int(text))
    return numbers[0], numbers[1], OPS.index(op), numbers[2], numbers[3]
