"""What a run says about its data, and what `prepare` is asked for. Each field is one line of a config file."""

from dataclasses import dataclass
from typing import Any, Literal

from meshtrain.errors import InputError


@dataclass(frozen=True)
class PrepareConfig:
    """One preparation: text in, token sets out."""

    # File names, glob patterns (`**` goes into folders) or "python-stdlib", read in this order.
    input: tuple[str, ...]
    # "byte", "train:SIZE" (a byte-level BPE learned from the training documents) or the path of a tokenizer.json.
    tokenizer: str
    # The folder to make; it holds tokenizer.json and the sets train/ and held_out/.
    output: str = ""
    # Where the text stands in JSON lines and Parquet.
    text_key: str = "text"
    # Where JSON lines hold the messages of a chat. Given, they go through the tokenizer's chat template, and only what
    # the assistant says counts; "": the input is text.
    chat_key: str = ""
    # Below 1: the share of the documents that is held out. From 1 on: their number. 0: none.
    held_out: float = 0.01
    # The end-of-document token of a tokenizer file that does not tell.
    end_token: str = ""
    # Tokens of a shard (4 bytes each).
    shard_tokens: int = 1 << 27

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", _strings("input", self.input))
        if not self.tokenizer:
            raise InputError("tokenizer: give 'byte', 'train:SIZE' (for example train:4096) or a tokenizer.json.")
        if self.chat_key and (self.tokenizer == "byte" or self.tokenizer.startswith("train:")):
            raise InputError(
                f"tokenizer: {self.tokenizer!r} has no chat template; for chats give the folder of a model's tokenizer."
            )
        if not (0 <= self.held_out < 1 or (self.held_out >= 1 and float(self.held_out).is_integer())):
            raise InputError(
                f"held_out: {self.held_out} is neither a share of the documents (0 to 1, for example 0.01) nor a whole"
                " number of them."
            )
        if self.shard_tokens < 1:
            raise InputError(f"shard_tokens: {self.shard_tokens} must be at least 1 (the default is {1 << 27}).")


@dataclass(frozen=True)
class DataConfig:
    """Where the rows of a run come from. The batch size is the run's."""

    # "tokens": token sets made by `prepare`; "synthetic": random ids, for benchmarks.
    kind: Literal["tokens", "synthetic"] = "tokens"
    # What `prepare` made, one folder or several (a mixture).
    paths: tuple[str, ...] = ()
    # The proportions of a mixture in samples, one for each path, any scale; empty: in proportion to their tokens.
    weights: tuple[float, ...] = ()
    # (sample, weights), ...: other proportions from that sample of the run on (samples: steps x global_batch). A run
    # may be taken up with changes that lie ahead of it; they become part of what it is.
    changes: tuple[tuple[int, tuple[float, ...]], ...] = ()
    # Tokens of a row.
    length: int = 512
    # Whether each document is a segment of its own, blind to the others in its row. If not, a row is one document:
    # on GPUs cuDNN's flash attention then serves, which cannot keep documents apart.
    isolate_documents: bool = True
    # Whether each epoch cuts the stream at other places.
    shift_windows: bool = False
    # Whether every file is read and compared with its checksum before the first step.
    verify: bool = False
    # What to prepare where the (only) path does not exist yet; its `output` is that path.
    prepare: PrepareConfig | None = None

    @property
    def packed(self) -> bool:
        """Whether rows may hold several documents that are kept apart."""
        return self.kind == "tokens" and self.isolate_documents

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", _strings("data.paths", self.paths))
        weights: Any = self.weights
        object.__setattr__(self, "weights", tuple(weights) if isinstance(weights, list | tuple) else (weights,))
        if self.length < 1:
            raise InputError(f"data.length: {self.length} must be at least 1, for example 512.")
        if self.kind == "tokens" and not self.paths:
            raise InputError("data.paths: name the folder that `python -m meshtrain.prepare --output` made.")
        if self.weights and len(self.weights) != len(self.paths):
            raise InputError(
                f"data.weights: {len(self.weights)} weights for {len(self.paths)} paths; give one for each path."
            )
        if self.changes and len(self.paths) < 2:
            raise InputError("data.changes: there is one path, so nothing to change; data.changes=() would work.")
        if self.prepare is not None and len(self.paths) != 1:
            raise InputError(f"data.prepare: prepares one path, and data.paths names {len(self.paths)}.")


def _strings(key: str, value: Any) -> tuple[str, ...]:
    """One string or several, as a tuple."""
    values = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(item, str) and item for item in values):
        raise InputError(f"{key}: {value!r} must be a string or a list of strings.")
    return values
