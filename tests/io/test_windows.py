"""Windows: every token once an epoch, labels that stop at document ends, rows that depend on (seed, i) alone."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtrain.errors import InputError
from meshtrain.io.rows import FIELDS, Rows
from meshtrain.io.windows import HeldOutWindows, Windows
from tests.io.sets import END, numbered, stream_of, write_set

DOCUMENTS = st.lists(st.lists(st.integers(1, 99), max_size=30), min_size=1, max_size=12)


def expected_row(stream: list[int], start: int, length: int) -> dict[str, list[int]]:
    """A row with isolated documents, token by token: the plain loop that the real thing must equal."""
    tokens, labels, positions, segments = [0] * length, [-1] * length, [0] * length, [0] * length
    position, segment = 0, 1
    for column in range(length):
        place = start + column
        if place >= len(stream):
            break
        tokens[column], positions[column], segments[column] = stream[place], position, segment
        if stream[place] == END:
            position, segment = 0, segment + 1
        else:
            labels[column], position = stream[place + 1], position + 1
    return dict(zip(FIELDS, (tokens, labels, positions, segments), strict=True))


@given(documents=DOCUMENTS, length=st.integers(1, 40), shard_tokens=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_held_out_windows_are_the_stream(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], length: int, shard_tokens: int
) -> None:
    tokens = write_set(tmp_path_factory.mktemp("set") / "s", documents, shard_tokens=shard_tokens)
    stream = stream_of(documents)
    source = HeldOutWindows(tokens, length)
    rows = source.rows(np.arange(source.num_rows + 2))
    for row in range(source.num_rows + 2):
        for name, values in expected_row(stream, row * length, length).items():
            assert rows[name][row].tolist() == values, name
    assert rows["tokens"].ravel()[: len(stream)].tolist() == stream
    assert (rows["segments"] != 0).sum() == len(stream)
    # every token of a document but its first is predicted, exactly once
    assert (rows["labels"] >= 0).sum() == len(stream) - len(documents)


@given(documents=DOCUMENTS, length=st.integers(1, 20), seed=st.integers(0, 1000), epoch=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_an_epoch_holds_every_window_once(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], length: int, seed: int, epoch: int
) -> None:
    documents = [*documents, [1] * length]
    tokens = write_set(tmp_path_factory.mktemp("set") / "s", documents)
    stream = stream_of(documents)
    source = Windows(tokens, length, seed)
    rows = source.rows(np.arange(source.num_rows) + epoch * source.num_rows)
    expected = [expected_row(stream, w * length, length) for w in range(len(stream) // length)]
    for row, window in enumerate(source.starts(np.arange(source.num_rows) + epoch * source.num_rows) // length):
        assert {name: rows[name][row].tolist() for name in FIELDS} == expected[window]
    assert sorted(map(tuple, rows["tokens"].tolist())) == sorted(tuple(row["tokens"]) for row in expected)


def test_a_label_across_documents_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = numbered(70)
    tokens = write_set(tmp_path / "s", documents)
    monkeypatch.setattr(type(tokens), "document_ends", lambda self, start, stop: np.empty(0, np.int64))
    rows = HeldOutWindows(tokens, 10).rows(np.arange(7))
    assert rows["labels"][0].tolist() != expected_row(stream_of(documents), 0, 10)["labels"]


def test_epochs_are_reshuffled(tmp_path: Path) -> None:
    source = Windows(write_set(tmp_path / "s", numbered(700)), 7, seed=3)
    first, second = source.starts(np.arange(100)), source.starts(np.arange(100, 200))
    assert sorted(first) == sorted(second) == list(range(0, 700, 7))
    assert (first != second).mean() > 0.8


def test_documents_that_are_not_isolated_share_a_segment(tmp_path: Path) -> None:
    documents = numbered(40, 5)
    stream = stream_of(documents)
    rows = HeldOutWindows(write_set(tmp_path / "s", documents), 12, isolate_documents=False).rows(np.arange(4))
    flat = {name: values.ravel() for name, values in rows.items()}
    assert flat["tokens"][:40].tolist() == stream
    assert flat["labels"][:39].tolist() == stream[1:]
    assert flat["labels"][39:].tolist() == [-1] * 9
    assert flat["segments"].tolist() == [1] * 40 + [0] * 8
    assert flat["positions"].tolist() == [*range(12), *range(12), *range(12), *range(4), *([0] * 8)]


@pytest.mark.parametrize("isolate", [True, False])
def test_shifted_windows_move_and_wrap(tmp_path: Path, isolate: bool) -> None:
    documents = numbered(98)
    stream = stream_of(documents)
    source = Windows(write_set(tmp_path / "s", documents), 10, 5, isolate, shift_windows=True)
    phases, wrapped = set(), 0
    for epoch in range(12):
        index = np.arange(9) + 9 * epoch
        starts, rows = source.starts(index), source.rows(index)
        phases |= {int(start) % 10 for start in starts if start + 10 <= 98}
        covered = sorted((int(start) + column) % 98 for start in starts for column in range(10))
        assert len(set(covered)) == 90  # no token twice; the 8 left out differ from epoch to epoch
        for row, start in enumerate(starts):
            assert rows["tokens"][row].tolist() == (stream + stream)[start : start + 10]
            if start + 10 > 98:
                wrapped += 1
                seam = 98 - start
                assert rows["labels"][row, seam - 1] == -1  # the stream's end does not predict its beginning
                assert rows["segments"][row, seam] == rows["segments"][row, seam - 1] + 1
                assert rows["positions"][row, seam] == 0
    assert len(phases) > 4
    assert wrapped > 3


def test_rows_do_not_depend_on_which_process_asks(tmp_path: Path) -> None:
    """The rows of a batch, asked for by 1, 2 or 4 processes, in any order: the same rows."""
    source = Windows(write_set(tmp_path / "s", numbered(700)), 16, seed=1)
    whole = source.rows(np.arange(40, 56))
    for parts in (2, 4):
        split: list[Rows] = [source.rows(np.arange(40, 56)[part::parts]) for part in reversed(range(parts))][::-1]
        for name in FIELDS:
            together = np.stack([rows[name] for rows in split], 1).reshape(whole[name].shape)
            np.testing.assert_array_equal(together, whole[name])


def test_masked_tokens_are_not_predicted(tmp_path: Path) -> None:
    documents = [[1, 2, 3, 4], [5, 6, 7]]
    masks = [[0, 0, 1, 1], [0, 1, 0]]
    tokens = write_set(tmp_path / "s", documents, masks=masks, shard_tokens=4)
    rows = HeldOutWindows(tokens, 5).rows(np.arange(2))
    assert rows["labels"].tolist() == [[-1, 3, 4, END, -1], [6, -1, END, -1, -1]]
    tokens.verify()


def test_a_set_shorter_than_a_row_is_refused(tmp_path: Path) -> None:
    tokens = write_set(tmp_path / "s", [[1, 2, 3]])
    with pytest.raises(InputError, match=r"4 tokens do not fill one row of data.length=5.*at most 4"):
        Windows(tokens, 5)
    assert Windows(tokens, 4).num_rows == 1
    assert HeldOutWindows(tokens, 5).num_rows == 1
    with pytest.raises(InputError, match="length: 0"):
        Windows(tokens, 0)
