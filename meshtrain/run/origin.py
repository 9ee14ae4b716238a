"""Where a run's first weights come from (`init`): a Hugging Face folder, an imported folder, a run or a checkpoint.

A folder says what its model is, so a run need not: its `model` section is laid over the folder's. What would give the
weights another meaning is refused; what only training or longer texts ask for (FREE) may differ. The files that belong
to the model (tokenizer, config.json) go along in the run's folder, so that an export gives them back.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, StorageError
from meshtrain.io import disk
from meshtrain.io.hf import is_folder, open_folder
from meshtrain.io.hf.family import TRAINING_EXPERTS
from meshtrain.io.hf.folder import CARRIED, CONFIG, Folder
from meshtrain.io.home import expanded
from meshtrain.model import ModelConfig

HF = "hf"  # the folder, in a run's, of what came along from Hugging Face
TOKENIZER = "tokenizer.json"
RECORD = "record.json"  # names and dtypes as they were in the files
# What may differ from the folder's model: training, and the ways to make texts longer than it was trained on.
FREE = ("dropout", "init_std", "max_length", "rope_theta", "rope_scaling", "window", "window_layers", "moe")


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's values with the model of the folder that `init` names below its own `model` section."""
    init = values.get("init")
    if not isinstance(init, str):
        return dict(values)
    expanded(init, "config.init")  # what no folder can be called is told with its key
    # Where that folder is no longer there, the run's own knows what it began with.
    found = stored_model(init) or stored_model(values.get("workdir") or init)
    if found is None:
        return dict(values)
    own = values.get("model") or {}
    if not isinstance(own, Mapping):
        return dict(values)  # the schema says what is wrong with it
    model = {**found, **own}
    if isinstance(found.get("moe"), dict) and isinstance(own.get("moe"), Mapping):
        model["moe"] = {**found["moe"], **own["moe"]}
    return {**values, "model": model}


def check(init: str | None, model: ModelConfig) -> None:
    """InputError where a Hugging Face folder is not whole, or is not the weights of this model.

    A folder that holds no weights at all yet is enough to show and to plan a run.
    """
    if init is None or not is_folder(init):
        return
    folder = open_folder(init)
    theirs = dataclasses.asdict(folder.model)
    for name, value in dataclasses.asdict(model).items():
        if name == "moe" and value is not None and theirs[name] is not None:
            value, theirs[name] = (_untrained(section) for section in (value, theirs[name]))
        elif name in FREE:
            continue
        if value != theirs[name]:
            raise InputError(
                f"model.{name}={value!r}: the weights in {folder.path} are of a model with {theirs[name]!r}. Leave the"
                f" key out: what a run does not say of its model is taken from the folder of init."
            )
    if folder.has_files:
        assert folder.weights


def check_weights(init: str | None) -> None:
    """InputError where a Hugging Face folder holds no weights: what trains needs them."""
    if init is not None and is_folder(init) and not (folder := open_folder(init)).has_files:
        assert folder.weights


def stored_model(path: str | Path) -> dict[str, Any] | None:
    """The model of a Hugging Face folder, an imported one or a run, as plain values; None where it is none of these."""
    if is_folder(path):
        return dataclasses.asdict(open_folder(path).model)
    try:
        return dict(json.loads((expanded(path) / CONFIG).read_text())["config"]["model"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def carry(init: str | None, workdir: Path) -> None:
    """Copies what belongs to the model from the folder of `init` into the run's, once; nothing where there is none.

    StorageError where that fails.
    """
    to = workdir / HF
    if init is None or to.exists():
        return
    source = expanded(init)
    partial = workdir / f".{HF}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        if is_folder(source):
            copy_files(open_folder(source), partial)
        elif (source / HF / RECORD).exists():
            shutil.copytree(source / HF, partial)
        else:
            return
        disk.sync_all(partial)
        partial.rename(to)
    except OSError as error:  # of several files: shutil.Error
        shutil.rmtree(partial, ignore_errors=True)
        reason = error.strerror or str(error)
        raise StorageError(f"the tokenizer and config.json of {source} cannot be copied to {to}: {reason}.") from None


def other_tokenizer(init: str | None, hashes: Collection[str]) -> str | None:
    """A warning where the data was made with another tokenizer than the one beside the first weights; else None."""
    folder = expanded(init or "")
    for file in (folder / HF / TOKENIZER, folder / TOKENIZER):
        if init is not None and file.exists():
            if hashlib.sha256(file.read_bytes()).hexdigest() not in hashes and hashes:
                return f"the data was made with another tokenizer than {file}: its ids mean something else to the model"
            return None
    return None


def copy_files(folder: Folder, to: Path) -> None:
    """The files of a Hugging Face folder that are not weights, and how its weights were named and stored."""
    to.mkdir(parents=True)
    for name in (CONFIG, *CARRIED):
        if (folder.path / name).exists():
            shutil.copyfile(folder.path / name, to / name)
    (to / RECORD).write_text(json.dumps(folder.record, indent=1) + "\n")


def _untrained(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if name not in TRAINING_EXPERTS}
