"""Tokenizers: what is encoded decodes to the same text, and the end token stands at ends only."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtrain.errors import InputError
from meshtrain.io import tokenizer as module
from meshtrain.io.tokenizer import END_TOKEN, Tokenizer, load_tokenizer, train_tokenizer, trained_size

TEXTS = [f"def f{n}(x):\n    return x + {n}  # größer, 漢字 🙂\n" for n in range(40)]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(TEXTS, 300)


def test_a_text_that_a_tokenizer_cannot_say_is_named() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, END_TOKEN: 1}, unk_token="[UNK]"))
    with pytest.raises(InputError, match=r"words: a text cannot be encoded: .*\[UNK\]"):
        Tokenizer("words", words.to_str(), 2, 1).encode(["b"])


def bpe(unk: str | None = None) -> tokenizers.Tokenizer:
    """A BPE of the letters a and b, with a mark before each text."""
    vocab = {"a": 0, "b": 1, "ab": 2, END_TOKEN: 3, "<s>": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b")], unk_token=unk))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.normalizer = tokenizers.normalizers.NFKC()
    backend.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 4)])
    backend.add_special_tokens([END_TOKEN, "<s>"])
    return backend


def test_text_is_never_left_out_in_silence(trained: Tokenizer, tmp_path: Path) -> None:
    """The library passes over what is not in a BPE's vocabulary, where nothing stands for the unknown."""
    assert bpe().encode("abc", add_special_tokens=False).ids == [2]  # so it does
    tokenizer = Tokenizer("old", bpe().to_str(), 5, 3)
    assert [ids.tolist() for ids in tokenizer.encode(["ab  ba", ""])] == [[2, 1, 0], []]
    for text in ("abc", "ab é", "c"):
        with pytest.raises(InputError, match=r"old: it has no tokens for a part of '.*left out of the text in silence"):
            tokenizer.encode([text])
    with pytest.raises(InputError, match="no tokens for a part of 'xx'"):
        tokenizer.encode_chats([("ab<s>xx", [(0, 2)])])
    assert Tokenizer("new", bpe("<s>").to_str(), 5, 3).encode(["ac"])[0].tolist() == [0, 4]
    assert trained.encode(["日本"])[0].size == 6  # all bytes are known


def test_what_a_tokenizer_puts_before_a_text_is_found_whatever_it_knows(tmp_path: Path) -> None:
    backend = bpe()
    backend.model = tokenizers.models.BPE({"z": 0, END_TOKEN: 3, "<s>": 4}, [])
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    assert load_tokenizer(str(tmp_path)).begin_id == 4


def test_ids_that_a_batch_cannot_hold_are_refused(tmp_path: Path) -> None:
    text = json.loads(tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, END_TOKEN: 1}, unk_token="a")).to_str())
    text["model"]["vocab"][END_TOKEN] = 2**31  # (the library itself would count through all ids to write it)
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(InputError, match=r"a vocabulary of 2147483649 ids; ids from 2147483648 on"):
        load_tokenizer(str(tmp_path))


def test_bytes_are_bytes() -> None:
    byte = load_tokenizer("byte")
    assert (byte.vocab_size, byte.end_id) == (257, 256)
    assert byte.encode(["aé\0", ""])[0].tolist() == [97, 0xC3, 0xA9, 0]
    every = bytes(range(128)).decode() + "".join(chr(c) for c in range(0xC0, 0x300, 7))
    # the file that is saved is the same tokenizer: other programs decode and encode alike
    backend = tokenizers.Tokenizer.from_str(byte.text)
    assert backend.encode(every, add_special_tokens=False).ids == byte.encode([every])[0].tolist()
    assert byte.decode(byte.encode([every])[0]) == every
    assert backend.token_to_id(END_TOKEN) == 256
    assert backend.get_vocab_size() == 257


@given(text=st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(trained: Tokenizer, text: str) -> None:
    for tokenizer in (trained, load_tokenizer("byte")):
        ids = tokenizer.encode([text])[0]
        assert tokenizer.decode(ids) == text
        assert tokenizer.end_id not in ids


def test_a_trained_tokenizer_is_the_same_every_time(trained: Tokenizer) -> None:
    again = train_tokenizer(TEXTS, 300)
    assert again.sha256 == trained.sha256
    assert trained.vocab_size == 300
    assert (trained.name, trained.end_id) == ("train:300", 0)
    assert sum(map(len, trained.encode(TEXTS))) < sum(len(text.encode()) for text in TEXTS) / 2


def test_special_tokens_in_the_text_are_only_text(trained: Tokenizer, tmp_path: Path) -> None:
    text = f"before {END_TOKEN} after"
    for tokenizer in (trained, load_tokenizer(save(tmp_path, trained.text)), load_tokenizer("byte")):
        ids = tokenizer.encode([text])[0]
        assert tokenizer.end_id not in ids
        assert tokenizer.decode(ids) == text
    # the library's own default would have put an end of document there
    assert 0 in tokenizers.Tokenizer.from_str(trained.text).encode(text).ids


def save(folder: Path, text: str, **neighbours: Any) -> str:
    (folder / "tokenizer.json").write_text(text)
    for name, content in neighbours.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder / "tokenizer.json")


def test_a_file_is_used_as_it_is(trained: Tokenizer, tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(trained.text)
    backend.add_special_tokens(["<bos>", "<other_end>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 300)])
    backend.enable_truncation(5)
    backend.enable_padding(length=8)
    path = save(tmp_path, backend.to_str())
    loaded = load_tokenizer(path)
    assert loaded.text == Path(path).read_text()
    assert (loaded.vocab_size, loaded.end_id) == (302, 0)
    # neither truncated nor padded, and nothing put before it
    np.testing.assert_array_equal(loaded.encode(TEXTS)[3], trained.encode(TEXTS)[3])
    assert load_tokenizer(path, "<other_end>").end_id == 301
    assert load_tokenizer(str(tmp_path)).sha256 == loaded.sha256  # the folder will do
    save(tmp_path, backend.to_str(), tokenizer_config={"eos_token": {"content": "<other_end>"}})
    assert load_tokenizer(path).end_id == 301


def test_long_documents_are_cut_without_a_trace(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "".join(TEXTS) + "  \n\n  odd   spaces \n x\n" + "".join(TEXTS) + "\n"
    whole = trained.encode([long, TEXTS[0]])
    monkeypatch.setattr(module, "_PIECE", 50)
    assert len(list(module._pieces(long))) > 10
    assert "".join(module._pieces(long)) == long
    for a, b in zip(whole, trained.encode([long, TEXTS[0]]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_tokenizer_that_marks_beginnings_is_not_cut(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = tokenizers.Tokenizer.from_str(trained.text)
    backend.normalizer = tokenizers.normalizers.Prepend("_")
    marking = Tokenizer("file", backend.to_str(), trained.vocab_size, 0)
    whole = marking.encode(["".join(TEXTS)])[0]
    monkeypatch.setattr(module, "_PIECE", 50)
    np.testing.assert_array_equal(whole, marking.encode(["".join(TEXTS)])[0])
    monkeypatch.setattr(Tokenizer, "_may_cut", True)  # what cutting would have made of it
    assert not np.array_equal(whole, replace(marking).encode(["".join(TEXTS)])[0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("bytes", "cannot be read.*Did you mean 'byte'"),
        ("no/such/tokenizer.json", "No such file"),
        ("train:", "SIZE must be a number of at least 257"),
        ("train:256", "SIZE must be a number of at least 257"),
        ("train:99999999999999", "at most 16777216"),
        ("train:4k", "SIZE must be a number of at least 257"),
    ],
)
def test_what_is_no_tokenizer_is_refused(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trained_size(spec) or load_tokenizer(spec)


def test_a_broken_file_and_a_missing_end_token_are_refused(trained: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a tokenizer.json that can be loaded"):
        load_tokenizer(save(tmp_path, trained.text[:200]))
    with pytest.raises(InputError, match=r"not a tokenizer.json that can be loaded"):
        load_tokenizer(save(tmp_path, "{}"))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(InputError, match=r"tokenizer.model of SentencePiece and no tokenizer.json.*save_pretrained"):
        load_tokenizer(str(tmp_path / "old"))
    nameless = trained.text.replace(END_TOKEN, "<finis>")
    with pytest.raises(InputError, match=r"no end-of-document token: none of the usual names.*--end-token"):
        load_tokenizer(save(tmp_path, nameless))
    with pytest.raises(InputError, match=r"'<fini>' is not in its vocabulary.*Did you mean '<finis>'"):
        load_tokenizer(save(tmp_path, nameless), "<fini>")
