"""From a `DataConfig` to sources: what the run trains on and what it is evaluated on."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshtrain.errors import InputError
from meshtrain.io.config import DataConfig
from meshtrain.io.home import expanded
from meshtrain.io.mixture import Mixture
from meshtrain.io.permutation import keyed
from meshtrain.io.preparation import prepare_if_missing, read_prepared
from meshtrain.io.rows import Source
from meshtrain.io.synthetic import Synthetic
from meshtrain.io.tokens import MANIFEST, TokenSet, open_token_set
from meshtrain.io.windows import HeldOutWindows, Windows


def ensure_prepared(config: DataConfig) -> None:
    """Prepare the corpus of `config` where that is asked for and its folder is missing; for one process to call."""
    if config.kind == "tokens" and config.prepare is not None:
        prepare_if_missing(replace(config.prepare, output=config.paths[0]))


def open_train(config: DataConfig, *, vocab: int, seed: int) -> Source:
    """The training rows: row i is a pure function of (data, seed, i). `vocab` is the model's.

    InputError where a set is missing, damaged, shorter than a row, or holds ids that the model has no row for.
    """
    if config.kind == "synthetic":
        return Synthetic(vocab, config.length, seed)
    sets = token_sets(config, "train", vocab)
    sources = tuple(
        Windows(
            tokens,
            config.length,
            seed if len(sets) == 1 else int(keyed(seed, number)[0]),
            config.isolate_documents,
            config.shift_windows,
        )
        for number, tokens in enumerate(sets.values())
    )
    if len(sources) == 1:
        return sources[0]
    weights = config.weights or tuple(float(tokens.num_tokens) for tokens in sets.values())
    return Mixture(sources, weights, config.changes)


def open_held_out(config: DataConfig, *, vocab: int) -> dict[str, HeldOutWindows]:
    """Path -> held-out rows, for the paths that have them; empty for synthetic data. Errors as in `open_train`."""
    if config.kind == "synthetic":
        return {}
    return {
        path: HeldOutWindows(tokens, config.length, config.isolate_documents)
        for path, tokens in token_sets(config, "held_out", vocab).items()
    }


def token_sets(config: DataConfig, part: str, vocab: int) -> dict[str, TokenSet]:
    """Path -> its token set `part` ("train" or "held_out"); a path may also be a token set itself, for training.

    InputError where one is missing (held-out sets may never have been made) or damaged, where their tokenizers differ,
    or where one has more ids than `vocab`.
    """
    sets = {}
    for path in config.paths:
        folder = expanded(path, "data.paths") / part
        if (folder / MANIFEST).exists():
            sets[path] = open_token_set(folder)
        elif part == "train":
            sets[path] = open_token_set(expanded(path, "data.paths"))
        elif part in _made(expanded(path, "data.paths")):
            raise InputError(
                f"{folder}: is missing, and {MANIFEST} beside it says that it was made. Bring it back, or prepare the"
                " corpus again."
            )
        if path in sets and config.verify:
            sets[path].verify()
    for path, tokens in sets.items():
        first = next(iter(sets))
        if tokens.tokenizer_sha256 != sets[first].tokenizer_sha256:
            raise InputError(
                f"data.paths: {path} was prepared with the tokenizer {tokens.tokenizer!r}, {first} with another one"
                f" ({sets[first].tokenizer!r}); prepare both with the same tokenizer.json."
            )
        if tokens.vocab_size > vocab:
            raise InputError(
                f"model.vocab: {vocab} is less than the {tokens.vocab_size} ids of the tokenizer of {path}; use"
                f" model.vocab={tokens.vocab_size} or more."
            )
    return sets


def _made(folder: Path) -> Collection[str]:
    """The parts that a prepared corpus says it has; none of a token set itself, or of parts that lie alone."""
    with suppress(InputError):
        return tuple(read_prepared(folder)["sets"])
    return ()
