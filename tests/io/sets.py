"""Token sets for tests: documents given as lists of ids, written by the real writer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshtrain.io.tokens import TokenSet, open_token_set
from meshtrain.io.writer import TokenWriter

END = 0


def write_set(
    folder: Path,
    documents: Sequence[Sequence[int]],
    *,
    vocab: int = 1000,
    shard_tokens: int = 50,
    masks: Sequence[Sequence[int]] | None = None,
    tokenizer: str = "test",
) -> TokenSet:
    """Write `documents` (without end ids, 3 bytes of text an id) and open what came out."""
    folder.mkdir(parents=True)
    writer = TokenWriter(
        folder,
        tokenizer={"name": tokenizer, "sha256": tokenizer},
        vocab_size=vocab,
        end_id=END,
        shard_tokens=shard_tokens,
        with_mask=masks is not None,
    )
    try:
        for number, document in enumerate(documents):
            mask = None if masks is None else np.array(masks[number])
            writer.add(np.array(document, np.uint32), 3 * len(document), mask)
        writer.close()
    finally:
        writer.abandon()
    return open_token_set(folder)


def stream_of(documents: Sequence[Sequence[int]]) -> list[int]:
    """The documents as one stream, each with its end id."""
    return [token for document in documents for token in (*document, END)]


def numbered(num_tokens: int, document: int = 7) -> list[list[int]]:
    """Documents of `document` tokens (end id included) with ids 1, 2, 3, ...: about `num_tokens` in all."""
    ids = iter(range(1, num_tokens + 1))
    return [[next(ids) for _ in range(document - 1)] for _ in range(num_tokens // document)]
