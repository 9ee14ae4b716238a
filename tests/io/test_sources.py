"""From config to sources: every mistake is named before a row is read, and defaults do what they say."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.config import DataConfig, PrepareConfig
from meshtrain.io.mixture import Mixture
from meshtrain.io.sources import ensure_prepared, open_held_out, open_train, token_sets
from meshtrain.io.synthetic import Synthetic
from meshtrain.io.windows import HeldOutWindows, Windows
from tests.io.sets import numbered, write_set


@pytest.fixture
def prepared(tmp_path: Path) -> DataConfig:
    """A corpus of two files that is not prepared yet."""
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"text number {number} " * 9)
    wanted = PrepareConfig((str(tmp_path / "*.txt"),), "byte", held_out=5)
    return DataConfig(paths=(str(tmp_path / "out"),), length=32, prepare=wanted)


def test_a_corpus_is_prepared_when_it_is_missing(prepared: DataConfig) -> None:
    with pytest.raises(
        InputError, match=r"out: not a token set: there is no such folder. `python -m meshtrain.prepare`"
    ):
        open_train(prepared, vocab=257, seed=0)
    ensure_prepared(prepared)
    source = open_train(prepared, vocab=300, seed=3)
    assert isinstance(source, Windows)
    assert (source.length, source.seed) == (32, 3)
    (held_out,) = open_held_out(prepared, vocab=300).values()
    assert isinstance(held_out, HeldOutWindows)
    assert held_out.tokens.num_documents == 5
    assert source.tokens.num_documents == 55
    ensure_prepared(prepared)
    shutil.rmtree(Path(prepared.paths[0]) / "held_out")  # an evaluation does not stop in silence
    with pytest.raises(InputError, match=r"held_out: is missing, and manifest.json beside it"):
        open_held_out(prepared, vocab=300)


def test_a_token_set_itself_is_a_path_too(tmp_path: Path) -> None:
    write_set(tmp_path / "a", numbered(70))
    config = DataConfig(paths=(str(tmp_path / "a"),), length=8)
    assert isinstance(open_train(config, vocab=1000, seed=0), Windows)
    assert open_held_out(config, vocab=1000) == {}


def test_mixtures_take_their_weights_or_their_sizes(tmp_path: Path) -> None:
    for name, size in (("a", 70), ("b", 210)):
        write_set(tmp_path / name, numbered(size))
    config = DataConfig(paths=(str(tmp_path / "a"), str(tmp_path / "b")), length=8)
    by_size = open_train(config, vocab=1000, seed=0)
    assert isinstance(by_size, Mixture)
    assert by_size.weights == (70.0, 210.0)
    weighted = open_train(replace(config, weights=(0.9, 0.1)), vocab=1000, seed=0)
    assert isinstance(weighted, Mixture)
    assert weighted.weights == (0.9, 0.1)
    # one set twice: each copy is shuffled in its own way
    twice = open_train(replace(config, paths=(config.paths[1],) * 1 + (f"{config.paths[1]}/",)), vocab=1000, seed=0)
    assert isinstance(twice, Mixture)
    one, other = (source.rows(np.arange(20))["tokens"] for source in twice.sources)
    assert not np.array_equal(one, other)


def test_synthetic_data_needs_no_path() -> None:
    config = DataConfig(kind="synthetic", length=16)
    source = open_train(config, vocab=77, seed=5)
    assert source == Synthetic(77, 16, 5)
    assert open_held_out(config, vocab=77) == {}
    ensure_prepared(config)


def test_sets_of_two_tokenizers_do_not_mix(tmp_path: Path) -> None:
    write_set(tmp_path / "a", numbered(70))
    write_set(tmp_path / "b", numbered(70), tokenizer="other")
    config = DataConfig(paths=(str(tmp_path / "a"), str(tmp_path / "b")), length=8)
    with pytest.raises(InputError, match=r"b was prepared with the tokenizer 'other', .*a with another one \('test'\)"):
        open_train(config, vocab=1000, seed=0)


def test_a_model_with_too_few_rows_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "a", numbered(70))
    config = DataConfig(paths=(str(tmp_path / "a"),), length=8)
    with pytest.raises(InputError, match=r"model.vocab: 999 is less than the 1000 ids.*model.vocab=1000"):
        open_train(config, vocab=999, seed=0)


def test_checksums_are_compared_when_asked_for(tmp_path: Path) -> None:
    write_set(tmp_path / "a", numbered(70))
    shard = tmp_path / "a" / "shard-00000.bin"
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    config = DataConfig(paths=(str(tmp_path / "a"),), length=8)
    assert list(token_sets(config, "train", 1000)) == [str(tmp_path / "a")]
    with pytest.raises(InputError, match="its SHA-256"):
        open_train(replace(config, verify=True), vocab=1000, seed=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "data.paths: name the folder"),
        ({"paths": ("a", "")}, "data.paths: .* list of strings"),
        ({"paths": "a", "length": 0}, "data.length: 0 must be at least 1"),
        ({"paths": ("a", "b"), "weights": (1.0,)}, "data.weights: 1 weights for 2 paths"),
        ({"paths": ("a", "b"), "prepare": PrepareConfig(("x",), "byte")}, "data.prepare: prepares one path"),
    ],
)
def test_configs_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DataConfig(**values)


def test_one_string_is_a_list_of_one() -> None:
    assert DataConfig(paths="a").paths == ("a",)  # type: ignore[arg-type]
    assert PrepareConfig("x", "byte").input == ("x",)  # type: ignore[arg-type]
