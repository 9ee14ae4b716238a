"""`prepare`: the same job gives the same bytes; a bad or a killed one leaves nothing that could be taken as done."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io import preparation
from meshtrain.io.config import PrepareConfig
from meshtrain.io.preparation import prepare, prepare_if_missing
from meshtrain.io.tokenizer import load_tokenizer
from meshtrain.io.tokens import TokenSet, open_token_set
from meshtrain.prepare import main

ROOT = Path(__file__).parent.parent.parent
TEXTS = [f"document {n}: größer, {'漢字' * (n % 5)}\n" * (1 + n % 7) for n in range(200)]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def config(lines: Path, tokenizer: str = "byte", **more: Any) -> PrepareConfig:
    more = {"output": str(lines.parent / "out"), "held_out": 0.1, "shard_tokens": 1000, **more}
    return PrepareConfig((str(lines),), tokenizer, **more)


def documents(tokens: TokenSet, tokenizer_file: Path) -> Iterator[str]:
    tokenizer = load_tokenizer(str(tokenizer_file))
    begin = 0
    for end in tokens.document_ends(0, tokens.num_tokens).tolist():
        ids = tokens.read(begin, end - begin)
        assert ids[-1] == tokens.end_id
        assert tokens.end_id not in ids[:-1]
        yield tokenizer.decode(ids[:-1])
        begin = end
    assert begin == tokens.num_tokens


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("tokenizer", ["byte", "train:400"])
def test_every_document_comes_back_from_one_of_the_sets(lines: Path, tokenizer: str) -> None:
    out = Path(prepare(config(lines, tokenizer)).folder)
    train, held_out = (open_token_set(out / name) for name in ("train", "held_out"))
    found = [list(documents(tokens, out / "tokenizer.json")) for tokens in (train, held_out)]
    assert sorted(found[0] + found[1]) == sorted(TEXTS)
    assert found[0] == [text for text in TEXTS if text in set(found[0])]  # in the order of the input
    assert 5 <= len(found[1]) <= 40  # 20 are expected of 200
    assert not set(found[0]) & set(found[1])
    assert train.num_bytes == sum(len(text.encode()) for text in found[0])
    assert len(train.shards) > 3
    for tokens in (train, held_out):
        tokens.verify()
    assert not list(lines.parent.glob(".out*"))


def test_equal_jobs_give_equal_bytes(lines: Path) -> None:
    prepare(config(lines, "train:300"))
    prepare(config(lines, "train:300", output=str(lines.parent / "again")))
    first, again = content(lines.parent / "out"), content(lines.parent / "again")
    assert first == again
    assert len(first) > 5


def test_the_held_out_documents_teach_the_tokenizer_nothing(lines: Path) -> None:
    prepare(config(lines, "train:300"))
    out = lines.parent / "out"
    train_only = list(documents(open_token_set(out / "train"), out / "tokenizer.json"))
    other = lines.parent / "train_only.jsonl"
    other.write_text("".join(json.dumps({"text": text}) + "\n" for text in train_only))
    prepare(config(other, "train:300", output=str(lines.parent / "o2"), held_out=0))
    prepare(config(lines, "train:300", output=str(lines.parent / "o3"), held_out=0))
    files = [(lines.parent / name / "tokenizer.json").read_text() for name in ("out", "o2", "o3")]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize(("held_out", "expected"), [(0, 0), (7, 7), (199, 199), (1e-9, 1), (0.999999, 199)])
def test_the_split(lines: Path, held_out: float, expected: int) -> None:
    prepared = prepare(config(lines, held_out=held_out))
    counts = {name: counts["num_documents"] for name, counts in prepared.sets.items()}
    assert counts == {"train": 200 - expected} | ({"held_out": expected} if expected else {})


def test_equal_documents_stay_on_one_side(lines: Path) -> None:
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS[:50], *TEXTS[:50]]))
    prepared = prepare(config(lines, held_out=0.3))
    out = prepared.folder
    sides = [set(documents(open_token_set(out / name), out / "tokenizer.json")) for name in prepared.sets]
    assert not sides[0] & sides[1]


def test_one_document_has_no_held_out_part(lines: Path) -> None:
    lines.write_text('{"text": "alone"}\n')
    assert list(prepare(config(lines, held_out=0.01)).sets) == ["train"]
    with pytest.raises(InputError, match=r"held_out: 1 of 1 document\(s\) leave nothing to train on"):
        prepare(config(lines, held_out=1, output=str(lines.parent / "o2")))


def test_the_same_job_again_finds_it_there(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--input",
        str(lines),
        "--tokenizer",
        "byte",
        "--output",
        str(lines.parent / "out"),
        "--held-out",
        ".1",
    ]
    assert main(arguments) == 0
    before = content(lines.parent / "out")
    times = {path: path.stat().st_mtime_ns for path in (lines.parent / "out").rglob("*")}
    assert main(arguments) == 0
    assert "already there, from the same job" in capsys.readouterr().out
    assert content(lines.parent / "out") == before
    assert {path: path.stat().st_mtime_ns for path in (lines.parent / "out").rglob("*")} == times


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: config(Path(c.input[0]), held_out=0.2), "held_out 0.1 there, 0.2 asked for"),
        (lambda c: config(Path(c.input[0]), "train:300"), "tokenizer 'byte' there, 'train:300' asked for"),
        (lambda c: Path(c.input[0]).write_text('{"text": "other"}\n') and c, "other documents"),
    ],
)
def test_another_job_never_overwrites(
    lines: Path, change: Callable[[PrepareConfig], PrepareConfig], message: str
) -> None:
    prepare(config(lines))
    before = content(lines.parent / "out")
    with pytest.raises(InputError, match=rf"already there, from another job \(.*{message}"):
        prepare(change(config(lines)))
    assert content(lines.parent / "out") == before


def test_a_trainer_takes_what_is_there_or_makes_it(lines: Path) -> None:
    assert prepare_if_missing(config(lines)).made
    lines.unlink()  # its input is not looked at again
    assert not prepare_if_missing(config(lines)).made
    with pytest.raises(InputError, match=r"held_out 0.1 there, 0.0 asked for"):
        prepare_if_missing(config(lines, held_out=0))
    (lines.parent / "out" / "manifest.json").unlink()
    with pytest.raises(InputError, match="not a prepared corpus"):
        prepare_if_missing(config(lines))


def test_other_peoples_files_are_never_touched(lines: Path) -> None:
    out = lines.parent / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is already there and is a folder that holds other files"):
        prepare(config(lines))
    assert content(out) == {"thesis.txt": hashlib.sha256(b"mine").hexdigest()}
    (out / "thesis.txt").unlink()
    assert prepare(config(lines)).made  # an empty folder is as good as none
    with pytest.raises(InputError, match="is already there and is not a folder"):
        prepare(config(lines, output=str(lines)))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"held_out": -0.5}, "held_out: -0.5 is neither a share"),
        ({"held_out": 2.5}, "held_out: 2.5 is neither a share"),
        ({"held_out": float("nan")}, "held_out: nan is neither a share"),
        ({"held_out": float("inf")}, "held_out: inf is neither a share"),
        ({"held_out": 200}, r"held_out: 200 of 200 document\(s\) leave nothing"),
        ({"shard_tokens": 0}, "shard_tokens: 0 must be at least 1"),
        ({"text_key": "body"}, r"in.jsonl:1: no key 'body'"),
        ({"tokenizer": "train:x"}, "SIZE must be"),
        ({"tokenizer": ""}, "tokenizer: give 'byte'"),
        ({"tokenizer": "none.json"}, "none.json: cannot be read"),
        ({"output": "/dev/null/out"}, "/dev/null/out: cannot be written"),
    ],
)
def test_bad_options_leave_nothing_behind(lines: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(config(lines, **more))
    assert sorted(path.name for path in lines.parent.iterdir()) == ["in.jsonl"]


def test_a_bad_line_at_the_end_leaves_nothing_behind(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lines.open("a") as file:
        file.write('{"txt": "a"}\n')
    out = lines.parent / "new" / "folder" / "out"
    assert main(["--input", str(lines), "--tokenizer", "byte", "--output", str(out)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert "in.jsonl:201: no key 'text'" in message
    assert message.count("\n") == 1
    assert sorted(path.name for path in lines.parent.iterdir()) == ["in.jsonl"]


def test_a_full_disk_is_told_beforehand(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = preparation.shutil.disk_usage(lines)
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(InputError, match=r"no room on the disk: about .* are needed"):
        prepare(config(lines))
    assert sorted(path.name for path in lines.parent.iterdir()) == ["in.jsonl"]


# RLIMIT_FSIZE, the size that the system lets a file have, stands in for a full disk; without preexec_fn there is no
# fork of this process, whose threads would not like it.
LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
runpy.run_module("meshtrain.prepare", run_name="__main__")
"""


def run(lines: Path, *more: str, start: tuple[str, ...] = ("-m", "meshtrain.prepare")) -> subprocess.Popen[str]:
    """A real process."""
    given = ["--input", str(lines), "--tokenizer", "byte", "--output", str(lines.parent / "out"), *more]
    return subprocess.Popen(
        [sys.executable, *start, *given], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_disk_that_fills_up_is_one_message_and_nothing_left(lines: Path) -> None:
    process = run(lines, start=("-c", LIMITED))
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.startswith("error: ")
    assert "no room on the disk (File too large" in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in lines.parent.iterdir()) == ["in.jsonl"]


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Enough text for a second of work."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} {TEXTS[n % 200]}"}) + "\n" for n in range(40_000)))
    return path


def wait_until_it_writes(process: subprocess.Popen[str], folder: Path) -> None:
    """Until the process has removed what an earlier one left and made its own first folder, or has ended."""
    begun, limit = folder / ".out.partial" / "new" / "train", time.monotonic() + 60
    for there in (False, True):
        while begun.is_dir() is not there and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)


def test_killed_at_any_moment_nothing_half_made_counts(many: Path) -> None:
    out, partial = many.parent / "out", many.parent / ".out.partial"
    chance = random.Random(1)
    killed = 0
    for _ in range(5):
        process = run(many, "--shard-tokens", "100000")
        wait_until_it_writes(process, many.parent)
        time.sleep(chance.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if not out.exists():
            killed += 1
            assert partial.is_dir()  # it was in the middle
            with pytest.raises(InputError, match="there is no such folder"):
                open_token_set(out / "train")
        else:
            open_token_set(out / "train").verify()
            assert json.loads((out / "manifest.json").read_text())["sets"]
            break
    assert killed >= 2
    process = run(many, "--shard-tokens", "100000")
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    for name in ("train", "held_out"):
        open_token_set(out / name).verify()
    assert sorted(path.name for path in many.parent.iterdir()) == ["in.jsonl", "out"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(many: Path, number: signal.Signals) -> None:
    process = run(many)
    wait_until_it_writes(process, many.parent)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "interrupted: nothing half-made was left behind\n"
    assert sorted(path.name for path in many.parent.iterdir()) == ["in.jsonl"]


def test_two_at_once_do_not_mix(many: Path) -> None:
    first = run(many)
    wait_until_it_writes(first, many.parent)
    first.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(InputError, match="another process is making it"):
            prepare(config(many))
    finally:
        first.send_signal(signal.SIGCONT)
    _, error = first.communicate(timeout=60)
    assert (first.returncode, error) == (0, "")
    open_token_set(many.parent / "out" / "train").verify()


def test_what_is_only_sometimes_needed_is_not_imported() -> None:
    heavy = ("jax", "grain", "pyarrow", "tokenizers", "tqdm", "orbax")
    code = f"import meshtrain.prepare, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_bits_per_byte_have_their_bytes(lines: Path) -> None:
    tokens = open_token_set(prepare(config(lines)).folder / "train")
    # one id a byte and one for each end
    assert tokens.num_tokens == tokens.num_bytes + tokens.num_documents
    assert np.isclose(tokens.bytes_per_token, tokens.num_bytes / tokens.num_tokens)
    assert os.path.getsize(tokens.folder / "shard-00000.bin") == 4000
