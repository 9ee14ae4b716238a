"""A Hugging Face folder: its config, its tensors, and whether they are exactly the weights that the config asks for.

Everything is checked from the config and the headers of the files, before a single weight is read: missing, truncated,
misindexed and stray files, missing and unexpected tensors, wrong shapes. Each error names the file and the tensor.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.errors import InputError, nearest
from meshtrain.io.hf.family import Family
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.safetensors import DTYPES, Tensor, read_header
from meshtrain.io.hf.table import Piece, pieces
from meshtrain.io.home import expanded
from meshtrain.model import ModelConfig

CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
# The files beside the weights that belong to the model wherever it goes.
CARRIED = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "tekken.json",
)  # fmt: skip
_FOREIGN = "consolidated"  # the publisher's own files beside Hugging Face's: the same weights under other names


@dataclass(frozen=True)
class Folder:
    """A folder whose config.json was understood."""

    path: Path
    values: dict[str, Any]
    family: Family
    model: ModelConfig

    @property
    def has_files(self) -> bool:
        """Whether there is any file of weights, or an index that names some."""
        return any(self.path.glob("*.safetensors*"))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the folder's files by name; InputError where files and index do not fit each other."""
        return _tensors(self.path)

    @cached_property
    def weights(self) -> dict[str, list[tuple[Piece, Tensor]]]:
        """For each weight's path the tensors that it is made of; InputError unless the folder holds exactly these."""
        family, model = self.family, self.model
        tensors = {name: tensor for name, tensor in self.tensors.items() if not family.passes_over(name, model)}
        found: dict[str, list[tuple[Piece, Tensor]]] = {}
        for line, spec in family.weights(model):
            found[line.path] = [(piece, self._tensor(piece)) for piece in pieces(line, spec, model)]
        used = {tensor.name for parts in found.values() for _, tensor in parts}
        unused = [tensors[name] for name in tensors if name not in used]
        for tensor in unused:
            if self.model.tied and tensor.name == self.family.output:
                self._check_tied(tensor, found["embedding/table"][0][1])
                continue
            raise InputError(
                f"{tensor.file}: tensor {tensor.name}: a {self.family.model_type} model with this config.json has no"
                f" such weight.{nearest(tensor.name, used)}"
            )
        return found

    @property
    def record(self) -> dict[str, Any]:
        """What an export needs to give each tensor the name and dtype that it had."""
        used = {tensor.name: tensor.dtype for parts in self.weights.values() for _, tensor in parts}
        usual = Counter(used.values()).most_common(1)[0][0]
        others = {name: dtype for name, dtype in used.items() if dtype != usual}
        return {"bare": self._bare, "dtype": usual, "other_dtypes": others}

    @cached_property
    def _bare(self) -> bool:
        """Whether the names lack the prefix of the model's inner part, as in files of the inner part alone."""
        return not any(name.startswith(self.family.prefix) for name in self.tensors)

    def _tensor(self, piece: Piece) -> Tensor:
        name = bare(piece.name, self.family) if self._bare else piece.name
        tensor = self.tensors.get(name)
        if tensor is None:
            why = ""
            if name == self.family.output:
                why = (
                    " Its config.json says that the output matrix is not the embedding table (tie_word_embeddings), so"
                    " it must be there."
                )
            raise InputError(f"{self.path}: tensor {name} is missing in its files.{why}{nearest(name, self.tensors)}")
        if tensor.dtype not in DTYPES:
            raise InputError(
                f"{tensor.file}: tensor {name} is {tensor.dtype}, which cannot be read (weights are float32 here);"
                f" convert the folder to one of {', '.join(DTYPES)} first."
            )
        if tensor.shape != piece.shape:
            raise InputError(
                f"{tensor.file}: tensor {name} has the shape {list(tensor.shape)}, and the sizes in {CONFIG} make it"
                f" {list(piece.shape)}."
            )
        return tensor

    def _check_tied(self, output: Tensor, table: Tensor) -> None:
        """A tied model's file may hold the output matrix as well, if it is the embedding table."""
        if output.shape == table.shape and output.dtype in DTYPES:
            one, other = output.open(), table.open()
            rows = max(1, (1 << 24) // max(1, one[:1].nbytes))
            if all(
                np.array_equal(one[i : i + rows].astype(np.float32), other[i : i + rows].astype(np.float32))
                for i in range(0, len(one), rows)
            ):
                return
        raise InputError(
            f"{output.file}: tensor {output.name} is not the same as {table.name}, but {CONFIG} says that they are one"
            " (tie_word_embeddings). If the output matrix is to count, set tie_word_embeddings to false there; if not,"
            " remove the tensor."
        )


def bare(name: str, family: Family) -> str:
    """A tensor's name in a file of the model's inner part alone."""
    return name.removeprefix(family.prefix)


def is_folder(path: str | Path) -> bool:
    """Whether this is a Hugging Face folder, rather than one of ours: a config.json that says a model_type, or one that
    cannot be read beside files of weights."""
    folder = expanded(path)
    try:
        return "model_type" in _json(folder / CONFIG)
    except (ValueError, TypeError, RecursionError):
        return any(folder.glob("*.safetensors*"))
    except OSError:
        return False


def open_folder(path: str | Path) -> Folder:
    """A folder with its config read; InputError where it is missing, not understood, or of an unknown family."""
    path = expanded(path)
    try:
        values = _json(path / CONFIG)
    except FileNotFoundError:
        missing = f"it has no {CONFIG}" if path.is_dir() else "there is no such folder"
        raise InputError(f"{path}: not a Hugging Face folder: {missing}.{_other_format(path)}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path / CONFIG}: cannot be read: {error}.") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise InputError(f"{path / CONFIG}: no model_type: not the config of a Hugging Face model.")
    kind = str(values["model_type"])
    if kind not in FAMILIES:
        raise InputError(
            f"{path / CONFIG}: models of the type {kind!r} cannot be read; these can: {', '.join(FAMILIES)}."
            f"{nearest(kind, FAMILIES)}"
        )
    for key in ("quantization_config", "compression_config"):
        if said := values.get(key):
            method = said.get("quant_method", "") if isinstance(said, dict) else ""
            raise InputError(
                f"{path / CONFIG}: {key}: quantized weights ({method or 'of an unknown method'}) cannot be trained:"
                " take the folder of the unquantized model, or write the weights as bf16 first (dequantize and"
                " save_pretrained in transformers)."
            )
    family = FAMILIES[kind]
    return Folder(path, values, family, family.model(values, str(path / CONFIG)))


def _json(path: Path) -> Any:
    """A JSON file, with or without the mark (BOM) that some programs put before UTF-8."""
    return json.loads(path.read_text(encoding="utf-8-sig"))


def _tensors(path: Path) -> dict[str, Tensor]:
    present = sorted(file.name for file in path.glob("*.safetensors") if not file.name.startswith(_FOREIGN))
    index = path / INDEX
    if not index.exists():
        if SINGLE not in present:
            raise InputError(f"{path}: it has neither {SINGLE} nor {INDEX}.{_other_format(path)}")
        _refuse_strays(path, present, [SINGLE], f"there is a {SINGLE} and no {INDEX}")
        return read_header(path / SINGLE)
    try:
        where = {str(name): str(file) for name, file in _json(index)["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{index}: cannot be read ({error!r}): expected a weight_map of tensors and files.") from None
    files = sorted(set(where.values()))
    for file in files:
        if file not in present:
            tensor = next(name for name, place in where.items() if place == file)
            raise InputError(f"{path / file}: missing; {INDEX} places tensor {tensor} (and others) there.")
    _refuse_strays(path, present, files, f"{INDEX} does not name it")
    found: dict[str, Tensor] = {}
    for file in files:
        header = read_header(path / file)
        for name in header:
            if where.get(name) != file:
                said = f"places it in {where[name]}" if name in where else "does not know it"
                raise InputError(f"{path / file}: holds tensor {name}, but {INDEX} {said}.")
        found |= header
    for name, file in where.items():
        if name not in found:
            raise InputError(f"{path / file}: does not hold tensor {name}, which {INDEX} places there.")
    return found


# Files by which a folder of another kind is known, and what to do with it.
_OTHERS = {
    "adapter_*": "It holds an adapter (LoRA), not a model: merge it into its base model (merge_and_unload in peft) and"
    " save that.",
    "*.gguf": "GGUF files are not read: take the model's folder of safetensors.",
    "*.bin": "Pickled weights (.bin) are not read, as they can run code: load the model with transformers and save it"
    " again (save_pretrained), which writes safetensors.",
    "*.pth": "The publisher's own files (.pth) are not read: take the model's folder for transformers.",
    "snapshots/*/config.json": "It is a folder of the Hub's cache: name the folder below its snapshots.",
    "*.safetensors": "Of several files an index has to say which tensor lies where.",
}


def _other_format(path: Path) -> str:
    """What a folder without our files seems to be, as a sentence behind a space; nothing where it cannot be told."""
    return next((f" {text}" for pattern, text in _OTHERS.items() if any(path.glob(pattern))), "")


def _refuse_strays(path: Path, present: Sequence[str], expected: Sequence[str], why: str) -> None:
    for name in present:
        if name not in expected:
            if name.startswith("adapter_"):
                raise InputError(f"{path / name}: {_OTHERS['adapter_*']}")
            raise InputError(f"{path / name}: a stray file: {why}, so it is not known which weights count. Remove one.")
