"""The token set on disk: what is written comes back, and no kind of damage goes unnoticed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtrain.errors import InputError
from meshtrain.io.tokens import open_token_set
from meshtrain.io.windows import Windows
from meshtrain.io.writer import TokenWriter
from tests.io.sets import END, numbered, stream_of, write_set


@given(
    documents=st.lists(st.lists(st.integers(1, 2**31 - 2), max_size=40), min_size=1, max_size=8),
    shard_tokens=st.integers(1, 70),
)
@settings(max_examples=50, deadline=None)
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], shard_tokens: int
) -> None:
    tokens = write_set(tmp_path_factory.mktemp("set") / "s", documents, vocab=2**31 - 1, shard_tokens=shard_tokens)
    stream = stream_of(documents)
    ids = tokens.read(0, len(stream))
    assert ids.dtype == np.int32
    assert ids.tolist() == stream
    assert tokens.num_tokens == len(stream)
    assert tokens.num_documents == len(documents)
    assert tokens.num_bytes == 3 * sum(map(len, documents))
    assert {shard.num_tokens for shard in tokens.shards[:-1]} <= {shard_tokens}
    ends = np.cumsum([len(document) + 1 for document in documents])
    assert tokens.document_ends(0, len(stream)).tolist() == ends.tolist()
    assert tokens.document_ends(3, len(stream) - 1).tolist() == [e for e in ends if 3 < e <= len(stream) - 1]
    tokens.verify()


def test_ids_above_16_bits_round_trip(tmp_path: Path) -> None:
    ids = [65_534, 65_535, 65_536, 65_537, 131_071, 2**31 - 2]
    tokens = write_set(tmp_path / "s", [ids], vocab=2**31 - 1)
    assert tokens.read(0, 7).tolist() == [*ids, END]
    stored = np.fromfile(tmp_path / "s" / "shard-00000.bin", "<u4")
    assert stored.tolist() == [*ids, END]
    assert stored.astype(np.uint16).tolist() != [*ids, END]  # what 16 bits would have made of it


def test_an_id_beyond_the_vocabulary_stops_with_file_sample_and_id(tmp_path: Path) -> None:
    tokens = write_set(tmp_path / "s", numbered(700), shard_tokens=100)
    shard = np.fromfile(tmp_path / "s" / "shard-00003.bin", "<u4")
    shard[41] = 70_000
    shard.tofile(tmp_path / "s" / "shard-00003.bin")
    source = Windows(tokens, 20, seed=2)
    sample = int(np.flatnonzero(source.starts(np.arange(35)) == 340)[0])
    with pytest.raises(
        InputError, match=rf"shard-00003.bin: token id 70000 at token 41 .*sample {sample}\).* size 1000"
    ):
        source.rows(np.array([sample]))
    source.rows(np.array([sample + 1]))  # the others are as good as before
    with pytest.raises(InputError, match=r"shard-00003.bin: its SHA-256"):
        tokens.verify()


def test_one_flipped_bit_fails_the_verification(tmp_path: Path) -> None:
    tokens = write_set(tmp_path / "s", numbered(70))
    for name in ("shard-00001.bin", "documents.bin"):
        path = tmp_path / "s" / name
        good = path.read_bytes()
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(InputError, match=rf"{name}: its SHA-256"):
            tokens.verify()
        path.write_bytes(good)
    tokens.verify()


@pytest.mark.parametrize("name", ["shard-00001.bin", "documents.bin"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "truncated"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "another dtype or overwritten"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_damaged_files_are_refused_before_and_while_they_are_read(
    tmp_path: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    tokens = write_set(tmp_path / "s", numbered(140))
    source = Windows(tokens, 10)
    source.rows(np.arange(14))  # everything is mapped now
    damage(tmp_path / "s" / name)
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        open_token_set(tmp_path / "s")
    with pytest.raises(InputError, match=rf"{name}: .*{message}"):
        source.rows(np.arange(14))


def test_document_ends_that_are_none_are_never_taken_for_ends(tmp_path: Path) -> None:
    """A file of the right size with other numbers in it: out of order, or in order and at other tokens."""
    write_set(tmp_path / "s", numbered(140))
    path = tmp_path / "s" / "documents.bin"
    good = np.frombuffer(path.read_bytes(), "<i8").copy()
    moved = np.where(good == 14, 15, good)
    for other, message in ((good[::-1], "not in order"), (moved, "token 14 of the file .*is 13, and documents.bin")):
        path.write_bytes(other.astype("<i8").tobytes())
        source = Windows(open_token_set(tmp_path / "s"), 10)
        with pytest.raises(InputError, match=message):
            source.rows(np.arange(14))
    path.write_bytes(good.tobytes())
    Windows(open_token_set(tmp_path / "s"), 10).rows(np.arange(14))


def edited(**changes: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": "mesh'), "manifest.json: cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not the manifest of a token set"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json: cannot be read"),
        (edited(format="other"), "not the manifest of a token set"),
        (edited(version=2), "version 2; this program reads version 1"),
        (edited(dtype="uint16"), "dtype is 'uint16'"),
        (edited(num_tokens=5), "totals are not the sums"),
        (edited(vocab_size="many"), "not a manifest that this version can read"),
        (edited(shards=[{"file": "shard-00000.bin"}]), "not a manifest that this version can read"),
        (edited(shards=[1]), "not a manifest that this version can read"),
        (edited(num_tokens="70"), "not a manifest that this version can read"),
        (edited(end_id=-1), "not a manifest that this version can read"),
        (edited(vocab_size=2**31 + 1), "a vocabulary of 2147483649 ids"),
        (lambda folder: (folder / "manifest.json").write_text("[" * 100_000), "manifest.json: cannot be read"),
        (shutil.rmtree, "there is no such folder"),
    ],
)
def test_what_is_no_token_set_is_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_set(tmp_path / "s", numbered(70))
    damage(tmp_path / "s")
    with pytest.raises(InputError, match=message):
        open_token_set(tmp_path / "s")


def test_fingerprints_tell_content_not_place(tmp_path: Path) -> None:
    one = write_set(tmp_path / "a", numbered(70))
    same = write_set(tmp_path / "elsewhere" / "b", numbered(70))
    other = write_set(tmp_path / "c", [*numbered(70)[:-1], [500] * 6])
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_the_writer_takes_no_id_beyond_the_vocabulary_and_no_folder_in_use(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="id 1000"):
        write_set(tmp_path / "s", [[1000]])
    write_set(tmp_path / "t", [[1]])
    with pytest.raises(FileExistsError):
        TokenWriter(tmp_path / "t", tokenizer={}, vocab_size=5, end_id=0, shard_tokens=5)
