"""Text that a tokenizer would leave out in silence. BPE alone does that, with what is not in its vocabulary, where it
has no token for what is unknown and no tokens for all bytes; the other kinds of models refuse.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from meshtrain.errors import InputError


class LostText:
    """Of the tokenizer `name` with the tokenizer.json `text`, open as `backend`."""

    def __init__(self, name: str, text: str, backend: Any) -> None:
        self._name, self._backend = name, backend
        whole = json.loads(text)
        self._possible = _may_lose(whole)
        # What is a token of its own wherever it stands: nothing of it reaches the model.
        added = sorted((token["content"] for token in whole.get("added_tokens") or []), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, filter(None, added))) or "(?!)")
        self._known: set[str] = set()  # words

    def refuse(self, texts: Iterable[str]) -> None:
        """InputError where a part of a text would be lost."""
        if not self._possible:
            return
        backend = self._backend
        for piece in (piece for text in texts for piece in self._added.split(text)):
            normal = backend.normalizer.normalize_str(piece) if backend.normalizer else piece
            cut = backend.pre_tokenizer
            for word, (start, stop) in cut.pre_tokenize_str(normal) if cut else [(normal, (0, len(normal)))]:
                if word in self._known:
                    continue
                covered = sum(token.offsets[1] - token.offsets[0] for token in backend.model.tokenize(word))
                if covered < len(word.encode()):
                    raise InputError(
                        f"{self._name}: it has no tokens for a part of {normal[start:stop][:40]!r}, nor one for what is"
                        " unknown, so that this would be left out of the text in silence. Give its BPE model an"
                        ' "unk_token" of its vocabulary, or take a tokenizer that knows all bytes.'
                    )
                self._known.add(word)


def _may_lose(tokenizer: dict[str, Any]) -> bool:
    """Whether a tokenizer.json has such a model."""
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model or model.get("unk_token") is not None:
        return False
    from tokenizers import pre_tokenizers

    by_bytes = "ByteLevel" in json.dumps([tokenizer.get("pre_tokenizer"), tokenizer.get("normalizer")])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if by_bytes else [f"<0x{byte:02X}>" for byte in range(256)]
    return not (by_bytes or model.get("byte_fallback")) or not set(alphabet) <= set(model["vocab"])
