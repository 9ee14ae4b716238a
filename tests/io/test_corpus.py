"""Reading documents: every format gives the same texts in the same order, every unusable input is named."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshtrain.errors import InputError
from meshtrain.io.corpus import STDLIB, find_files, survey

TEXTS = ["first document\n", "zweites Dokument: größer, 漢字, 🙂", "third\r\nwith\ttabs\n\n", "x"]


def texts(*patterns: str | Path, text_key: str = "text") -> list[str]:
    return [document.text for document in find_files(tuple(map(str, patterns)), text_key).documents()]


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_all_formats_give_the_same_documents(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
        (tmp_path / f"{number}.txt.gz").write_bytes(gzip.compress(text.encode()))
    records = [{"text": text, "other": 1} for text in TEXTS]
    lines = write_lines(tmp_path / "a.jsonl", records[0], "", records[1], "   ", *records[2:])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    write_parquet(tmp_path / "c.parquet", other=[1, 2, 3, 4], text=TEXTS)
    write_parquet(tmp_path / "d.parquet", text=pa.array(TEXTS).dictionary_encode())
    for pattern in ("*.txt", "*.txt.gz", "a.jsonl", "b.jsonl.gz", "c.parquet", "d.parquet"):
        assert texts(tmp_path / pattern) == TEXTS, pattern


def test_order_is_by_pattern_then_name_and_each_file_counts_once(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.txt", "deep/c.txt", "deep/er/d.txt", "z[1].txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    assert texts(tmp_path / "deep" / "**" / "*.txt", tmp_path / "*.txt") == [
        "deep/c.txt", "deep/er/d.txt", "a.txt", "b.txt", "z[1].txt",
    ]  # fmt: skip
    assert texts(tmp_path / "z[1].txt") == ["z[1].txt"]


def test_empty_documents_are_left_out(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", {"text": ""}, {"text": "x"}, {"text": ""})
    assert texts(tmp_path / "a.jsonl") == ["x"]


def test_the_standard_library_is_there() -> None:
    corpus = find_files((STDLIB,))
    assert not any("test" in path.parts or "site-packages" in path.parts for path in corpus.files)
    found = survey(corpus)
    assert found.num_documents > 400
    assert found.num_bytes > 5_000_000


def test_a_survey_tells_content_and_order(tmp_path: Path) -> None:
    one = survey(find_files((str(write_lines(tmp_path / "1.jsonl", {"text": "a"}, {"text": "b"})),)))
    again = survey(find_files((str(write_lines(tmp_path / "2.jsonl", {"text": "a", "more": 0}, {"text": "b"})),)))
    turned = survey(find_files((str(write_lines(tmp_path / "3.jsonl", {"text": "b"}, {"text": "a"})),)))
    assert one.sha256 == again.sha256 != turned.sha256
    assert one.num_bytes == 2
    assert sorted(one.hashes) == sorted(turned.hashes)


def damaged_parquet(folder: Path) -> str:
    path = write_parquet(folder / "a.parquet", text=TEXTS * 50)
    data = path.read_bytes()
    path.write_bytes(data[:20] + b"\x00" * 40 + data[60:])
    return "a.parquet"


def parquet_of_bytes(folder: Path) -> str:
    pieces = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    return write_parquet(folder / "a.parquet", text=pa.Array.from_buffers(pa.string(), 1, pieces)).name


def parquet_twice(folder: Path) -> str:
    column = pa.array(["a"])
    pq.write_table(pa.table([column, column], names=["text", "text"]), folder / "a.parquet")
    return "a.parquet"


def written(name: str, data: bytes) -> Any:
    def write(folder: Path) -> str:
        (folder / name).write_bytes(data)
        return name

    return write


BAD = {
    "no such file": (lambda folder: "*.text", r"\*\.text: no file has this name or matches this pattern"),
    "a folder": (lambda folder: ".", "is a folder; name its files"),
    "misspelt stdlib": (lambda folder: "python-stdlb", "Did you mean 'python-stdlib'"),
    "nothing in it": (written("a.txt", b""), r"empty corpus: no text in 1 file"),
    "not UTF-8": (written("a.txt", b"good \xe9t\xe9"), r"a\.txt: not UTF-8 text: .* \(0xe9\) at byte 5"),
    "not UTF-8 in a line": (written("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n'), r"a\.jsonl:2: not UTF-8"),
    "not JSON": (written("a.jsonl", b'{"text": "a"}\n{"text": \n'), r"a\.jsonl:2: not JSON"),
    "not an object": (written("a.jsonl", b'["text"]\n'), r"a\.jsonl:1: a JSON list"),
    "no key": (written("a.jsonl", b'\n{"txet": "a", "id": 1}\n'), r"a\.jsonl:2: no key 'text'.*Did you mean 'txet'"),
    "no string": (written("a.jsonl", b'{"text": null}\n'), r"a\.jsonl:1: 'text' holds NoneType"),
    "half a surrogate": (written("a.jsonl", b'{"text": "\\ud800"}\n'), r"a\.jsonl:1: not text"),
    "not gzip": (written("a.txt.gz", b"plain text"), r"a\.txt\.gz: cannot be read: Not a gzipped file"),
    "half a gzip": (written("a.txt.gz", gzip.compress(b"text" * 99)[:-9]), r"a\.txt\.gz: damaged gzip"),
    "not Parquet": (written("a.parquet", b"plain text"), r"a\.parquet: damaged Parquet"),
    "damaged Parquet": (damaged_parquet, r"a\.parquet: (damaged|cannot be read)"),
    "no column": (lambda f: write_parquet(f / "a.parquet", txt=["a"]).name, r"no column 'text'.*Did you mean 'txt'"),
    "numbers": (lambda f: write_parquet(f / "a.parquet", text=[1]).name, r"column 'text' holds int64"),
    "too deep": (written("a.jsonl", b'{"a": ' + b"[" * 100_000), r"a\.jsonl:1: not JSON"),
    "zstandard": (written("a.jsonl.zst", b"(\xb5/\xfd"), r"a\.jsonl\.zst: \.zst files are not read.*\.gz"),
    "an archive": (written("a.tar.gz", gzip.compress(b"text")), r"a\.tar\.gz: \.tar files are not read"),
    "a JSON array": (written("a.json", b'[{"text": "a"},\n{"text": "b"}]'), r"a\.json: holds JSON records.*\.jsonl"),
    "lines as .json": (written("a.json", b'{"text": "a"}\n{"text": "b"}\n'), r"a\.json: holds JSON records.*\.jsonl"),
    "bytes in Parquet": (parquet_of_bytes, r"a\.parquet: column 'text' holds bytes that are not UTF-8"),
    "twice a column": (parquet_twice, r"a\.parquet: 2 columns are called 'text'"),
    "a null": (lambda f: write_parquet(f / "a.parquet", text=["a", None]).name, r"no text in row 1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(case: str, tmp_path: Path) -> None:
    make, message = BAD[case]
    with pytest.raises(InputError, match=message):
        survey(find_files((str(tmp_path / make(tmp_path)) if case != "misspelt stdlib" else make(tmp_path),)))


def test_marks_of_utf8_are_no_text_and_json_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone")
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "two"}\r\n')
    (tmp_path / "c.json").write_bytes(b'{"text": 3}')
    files = find_files((str(tmp_path / "*"),))
    assert [document.text for document in files.documents()] == ["one", "two", '{"text": 3}']


def test_no_input_at_all_is_an_error() -> None:
    with pytest.raises(InputError, match="no input given"):
        find_files(())


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of the library pass over it, and all that is in it would be missing from the corpus in silence."""
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    pattern = str(tmp_path / "**" / "*.txt")
    assert len(find_files((pattern,)).files) == 2
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match=r"the folder .*/closed cannot be read: Permission denied"):
        find_files((pattern,))
