"""`prepare`: from text to token sets, whole or not at all.

The corpus is walked twice (three times where a tokenizer is learned): a survey that finds every unusable input, counts
and hashes; then the encoding. The folder that it makes:

    manifest.json     what was asked for and what came out; two equal jobs make equal folders
    tokenizer.json    decodes the ids
    train/ held_out/  a token set each, see tokens.py
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.errors import InputError
from meshtrain.io.bar import byte_bar
from meshtrain.io.chat import ChatTemplate, load_template
from meshtrain.io.config import PrepareConfig
from meshtrain.io.corpus import Corpus, Document, Survey, find_files, survey
from meshtrain.io.home import expanded
from meshtrain.io.permutation import mix
from meshtrain.io.staging import errors_named, refuse_existing, remove_leftovers, staged
from meshtrain.io.tokenizer import Tokenizer, load_tokenizer, train_tokenizer, trained_size
from meshtrain.io.tokens import MANIFEST, read_manifest, sha256_of
from meshtrain.io.writer import TokenWriter, write_json

FORMAT, VERSION = "meshtrain-corpus", 1
_BATCH_BYTES = 2_000_000  # text that is encoded at once, on all cores
_LEARN_BYTES = 256_000_000  # text that a tokenizer is learned from; of more, a sample of its documents


@dataclass(frozen=True)
class Prepared:
    """A prepared folder. `made`: by this call, or there before. `sets`: name -> counts, as in the manifest."""

    folder: Path
    made: bool
    sets: dict[str, dict[str, Any]]
    vocab_size: int


def prepare(config: PrepareConfig, progress: bool = True) -> Prepared:
    """Make `config.output`, or find that it is there already from the same job. `progress`: bars, on a terminal.

    InputError for anything wrong with input, tokenizer or output; then nothing is left behind. An output that holds
    anything else is never touched.
    """
    output = expanded(config.output).absolute()
    chat = load_template(config.tokenizer) if config.chat_key else None
    corpus = find_files(config.input, config.chat_key or config.text_key, chat)
    size = trained_size(config.tokenizer)
    tokenizer = None if size else load_tokenizer(config.tokenizer, config.end_token)
    with errors_named(output):
        remove_leftovers(output)
        there = (output / MANIFEST).exists()
        if not there:
            refuse_existing(output)
    if there:
        _compare(_job(config, tokenizer, chat), read_prepared(output), output)
    with byte_bar("reading", None, progress) as advance:
        found = survey(corpus, advance)
    job = _job(config, tokenizer, chat) | {"corpus_sha256": found.sha256}
    if there:
        _compare(job, manifest := read_prepared(output), output)
        return Prepared(output, False, manifest["sets"], manifest["tokenizer"]["vocab_size"])

    threshold = _threshold(config.held_out, found)
    _check_room(output, found, config.tokenizer == "byte")
    with staged(output) as folder:
        if size:
            tokenizer = _learn(corpus, found, threshold, size, progress)
        assert tokenizer is not None
        record = {"name": config.tokenizer, "sha256": tokenizer.sha256}
        (folder / "tokenizer.json").write_text(tokenizer.text, encoding="utf-8")
        new_set = partial(
            TokenWriter,
            tokenizer=record,
            vocab_size=tokenizer.vocab_size,
            end_id=tokenizer.end_id,
            shard_tokens=config.shard_tokens,
            with_mask=chat is not None,
        )
        sets = _encode(folder, corpus, found, threshold, tokenizer, new_set, progress)
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "job": job,
            "input": list(config.input),
            "tokenizer": record | {"vocab_size": tokenizer.vocab_size, "end_id": tokenizer.end_id},
            "sets": sets,
        }
        write_json(folder / MANIFEST, manifest)
    return Prepared(output, True, sets, tokenizer.vocab_size)


def prepare_if_missing(config: PrepareConfig) -> Prepared:
    """`prepare` without bars, but a folder that is there from the same options is taken: its input is not read again.

    InputError where it was made with other options, or is not a prepared folder.
    """
    output = expanded(config.output).absolute()
    if not output.is_dir():
        return prepare(config, progress=False)
    manifest = read_prepared(output)
    wanted = {"input": list(config.input)} | _options(config)
    _compare(wanted, {"job": manifest["job"] | {"input": manifest["input"]}}, output)
    return Prepared(output, False, manifest["sets"], manifest["tokenizer"]["vocab_size"])


def read_prepared(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared folder; InputError where it is not one."""
    return read_manifest(folder, FORMAT, VERSION, "a prepared corpus")


def _options(config: PrepareConfig) -> dict[str, Any]:
    """What decides the result, besides the documents and the tokenizer file."""
    return {
        "tokenizer": config.tokenizer,
        "held_out": float(config.held_out),
        "end_token": config.end_token,
        "shard_tokens": config.shard_tokens,
    } | ({"chat_key": config.chat_key} if config.chat_key else {})


def _job(config: PrepareConfig, tokenizer: Tokenizer | None, chat: ChatTemplate | None) -> dict[str, Any]:
    """What two jobs must share to make equal folders; the documents' hash is added after the survey."""
    job = _options(config) | ({} if tokenizer is None else {"tokenizer_sha256": tokenizer.sha256})
    return job | ({} if chat is None else {"chat_template_sha256": chat.sha256})


def _compare(job: dict[str, Any], manifest: dict[str, Any], output: Path) -> None:
    """InputError, with the differences, unless the folder was made by a job that agrees with `job`."""
    made = manifest["job"]
    names = {
        "corpus_sha256": "other documents",
        "tokenizer_sha256": "another tokenizer file",
        "chat_template_sha256": "another chat template",
    }
    different = [
        names.get(key, f"{key} {made.get(key)!r} there, {value!r} asked for")
        for key, value in job.items()
        if made.get(key) != value
    ]
    if different:
        raise InputError(
            f"{output}: is already there, from another job ({'; '.join(different)}); nothing was changed."
            " Choose another output, or remove that folder."
        )


def _threshold(held_out: float, found: Survey) -> int:
    """A document is held out if its hash is at most this; -1: none. At least one document stays on either side."""
    ranked = np.unique(found.hashes)
    if held_out == 0 or (held_out < 1 and len(ranked) == 1):
        return -1
    if held_out >= 1:
        if held_out >= found.num_documents or len(ranked) == 1:
            raise InputError(
                f"held_out: {int(held_out)} of {found.num_documents} document(s) leave nothing to train on; use fewer,"
                " or 0."
            )
        chosen = int(np.sort(found.hashes)[int(held_out) - 1])
    else:
        chosen = int(held_out * 2**64)
    return int(np.clip(np.uint64(min(chosen, 2**64 - 1)), ranked[0], ranked[-2]))


def _check_room(output: Path, found: Survey, exact: bool) -> None:
    """InputError where the disk cannot hold the result (for other tokenizers than bytes: 5 bytes of text a token)."""
    tokens = found.num_documents + (found.num_bytes if exact else found.num_bytes // 5)
    needed = 4 * tokens + 8 * found.num_documents
    with errors_named(output):
        free = shutil.disk_usage(next(parent for parent in output.parents if parent.exists())).free
    if needed > free:
        raise InputError(
            f"{output}: no room on the disk: about {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free;"
            " nothing was written."
        )


def _learn(corpus: Corpus, found: Survey, threshold: int, size: int, progress: bool) -> Tokenizer:
    """A tokenizer from the training documents, or from a sample of them that does not depend on their order."""
    share = min(1.0, _LEARN_BYTES / found.num_bytes)

    def chosen(advance: Callable[[int], object]) -> Iterator[str]:
        for document in corpus.documents():
            advance(document.num_bytes)
            sampled = share == 1.0 or mix(np.array([document.hash], np.uint64))[0] < share * 2**64
            if document.hash > threshold and sampled:
                yield document.text

    with byte_bar("learning a tokenizer", found.num_bytes, progress) as advance:
        return train_tokenizer(chosen(advance), size)


def _encode(
    folder: Path,
    corpus: Corpus,
    found: Survey,
    threshold: int,
    tokenizer: Tokenizer,
    new_set: Callable[[Path], TokenWriter],
    progress: bool,
) -> dict[str, dict[str, Any]]:
    """Write the sets into `folder`; name -> counts and the checksum of its manifest."""
    with ExitStack() as stack:
        writers = {}
        for name in ["train"] if threshold < 0 else ["train", "held_out"]:
            (folder / name).mkdir()
            writers[name] = new_set(folder / name)
            stack.callback(writers[name].abandon)
        advance = stack.enter_context(byte_bar("encoding", found.num_bytes, progress))
        seen = hashlib.sha256()
        for batch in _batches(corpus.documents()):
            for document, (ids, mask) in zip(batch, _ids(batch, tokenizer), strict=True):
                writers["train" if document.hash > threshold else "held_out"].add(ids, document.num_bytes, mask)
                seen.update(document.hash.to_bytes(8, "little"))
                advance(document.num_bytes)
        if seen.hexdigest() != found.sha256:
            raise InputError("the input changed while it was read; nothing was written. Run it again.")
        manifests = {name: writer.close() for name, writer in writers.items()}
    return {
        name: {key: manifest[key] for key in ("num_tokens", "num_documents", "num_bytes")}
        | {"num_shards": len(manifest["shards"]), "manifest_sha256": sha256_of(folder / name / MANIFEST)}
        for name, manifest in manifests.items()
    }


def _ids(batch: list[Document], tokenizer: Tokenizer) -> Sequence[tuple[np.ndarray, np.ndarray | None]]:
    """The ids of each document without the end id that the writer adds, and which of them count (None: all)."""
    if batch[0].answers is None:
        ids = tokenizer.encode([document.text for document in batch])
        return [(tokenizer.begun(found), None) for found in ids]
    return tokenizer.encode_chats([(document.text, document.answers or ()) for document in batch])


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in lists of about _BATCH_BYTES of text."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.num_bytes
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
