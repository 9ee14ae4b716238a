"""`convert`: a Hugging Face folder to a folder that runs start from, and a run's checkpoint to a Hugging Face folder.

An imported folder holds the weights as a checkpoint of step 0 (no layout, float32), the model, and what came along:

    config.json  checkpoints/step_00000000/  hf/
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshtrain.cost.serving import serve
from meshtrain.errors import InputError
from meshtrain.io import checkpoint, checkpoint_folder
from meshtrain.io.checkpoint import CheckpointConfig, Checkpoints
from meshtrain.io.hf import open_folder, read_params
from meshtrain.io.hf.family import Family
from meshtrain.io.hf.folder import CONFIG
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.tokenizer_files import tokenizer_files
from meshtrain.io.hf.writing import Exported, Target, parse_dtype, write_folder
from meshtrain.io.home import expanded
from meshtrain.io.staging import staged
from meshtrain.io.stored_weight import read_weight
from meshtrain.io.tokens import MANIFEST
from meshtrain.layout import Layout, Placement, map_specs, named_specs, place, single_placement
from meshtrain.layout.padding import physical_specs
from meshtrain.model import ModelConfig, count_parameters, describe
from meshtrain.run import config_file, origin, schema
from meshtrain.run.cluster_file import read_cluster
from meshtrain.run.digits import LARGEST, read_digits, shown
from meshtrain.run.distributed import make_devices
from meshtrain.run.plan import serving

MARK = "meshtrain weights"
SHARD_BYTES = 5_000_000_000


def import_folder(source: str, to: str, layout: str | None, say: Callable[[str], None]) -> None:
    """Makes the folder `to` from a Hugging Face folder, whole or not at all. InputError names file and tensor."""
    import jax

    output = expanded(to).absolute()
    checkpoint_folder.refuse_pattern(output)
    folder = open_folder(source)
    place = _placement(layout)
    specs = describe(folder.model)
    say(f"{folder.path}: {folder.family.model_type}, {count_parameters(folder.model):,} parameters,"
        f" {len(folder.tensors)} tensors, stored as {folder.record['dtype']}")  # fmt: skip
    targets = map_specs(
        lambda spec: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=place.sharding("optimizer", spec.dims, spec.shape)
        ),
        physical_specs(specs, place),
    )
    with staged(output) as partial:
        params = read_params(folder, specs, targets)
        with Checkpoints(partial / "checkpoints", CheckpointConfig(), say) as checkpoints:
            checkpoints.save(0, {checkpoint.PARAMS: params}, {checkpoint.PARAMS: specs}, {"source": str(folder.path)})
        origin.copy_files(folder, partial / origin.HF)
        described = {"is": MARK, "config": {"model": dataclasses.asdict(folder.model)}}
        (partial / CONFIG).write_text(json.dumps(described, indent=1) + "\n")
    say(f"wrote {output}; a run starts from it with --config.init={output}")


def export_folder(
    run: str,
    to: str,
    step: int | None,
    dtype: str | None,
    shard_size: str | None,
    say: Callable[[str], None],
    serve_on: tuple[str, int] | None = None,
) -> Exported:
    """Makes the Hugging Face folder `to` from a run's or an imported folder's checkpoint, whole or not at all.

    serve_on: a cluster's file and a number of GPUs, for which vLLM's flags are said.
    """
    folder = expanded(run).absolute()
    values = origin.stored_model(folder)
    if values is None:
        raise InputError(f"{run}: not a run's folder: its {CONFIG} says no model.")
    model = schema.build(ModelConfig, values, "model")
    saved = _saved(folder, step, say)
    target = _target(folder, model, dtype, shard_size)
    specs = dict(named_specs(describe(model)))

    def weight(path: str) -> np.ndarray:
        return read_weight(saved, path, specs[path])

    say(f"exporting step {saved.step} of {folder} as {target.family.model_type}, {target.dtype}")
    written = write_folder(Path(to), model, target, weight)
    say(f"wrote {to}: {written.tensors} tensors in {written.files} file(s), {written.num_bytes:,} bytes")
    if written.overflows:
        say(f"warning: {written.overflows:,} numbers are too large for float16 and became infinite; bf16 holds them")
    if serve_on is None:
        say(f"vllm serve {to} serves it; --cluster FILE --gpus N says with which flags on which GPUs")
    else:
        plan = serve(model, read_cluster(serve_on[0]), serve_on[1], model.max_length)
        say(serving.text(plan).replace("vllm serve MODEL", f"vllm serve {to}"))
    return written


def parse_step(text: str | None) -> int | None:
    """A checkpoint's step: 0 is that of an imported folder. InputError where it is no whole number."""
    step = None if text is None else read_digits(text)
    if text is not None and step is None:
        raise InputError(f"--step {shown(text)}: expected a whole number, for example --step 1000.")
    return step


def parse_size(text: str) -> int:
    """Bytes from a text such as 5GB, 500MB or 2GiB; InputError where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    size = 0.0
    if found is not None:
        size = float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " ")
    if not 1 <= size <= LARGEST:
        raise InputError(f"--shard-size {shown(text)}: expected a size in bytes, for example 5GB or 500MB.")
    return int(size)


def _placement(layout: str | None) -> Placement:
    """The layout on the devices that there are (on CPUs: on as many virtual ones as its mesh takes)."""
    if layout is None:
        return single_placement()
    file = config_file.read(layout, "--layout")
    return place(Layout.parse(file.values, file.path.stem, file.doc), make_devices(file.values))


def _saved(folder: Path, step: int | None, say: Callable[[str], None]) -> checkpoint_folder.Saved:
    if step is None:
        return checkpoint.find(folder, say)
    steps = checkpoint_folder.steps(folder / "checkpoints")
    if step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise InputError(f"--step {step}: {folder} has no checkpoint of this step; there are: {there}.")
    return checkpoint.find(checkpoint_folder.step_folder(folder / "checkpoints", step), say)


def _target(folder: Path, model: ModelConfig, dtype: str | None, shard_size: str | None) -> Target:
    shard_bytes = parse_size(shard_size) if shard_size else SHARD_BYTES
    asked = parse_dtype(dtype) if dtype else None
    carried = folder / origin.HF
    if not (carried / origin.RECORD).exists():  # a run from nothing; an export may lie there all the same
        stored = json.loads((folder / CONFIG).read_text())["config"]
        usual = parse_dtype(stored.get("precision", {}).get("compute", "float32"))
        corpus = _corpus(stored)
        made = {} if corpus is None else tokenizer_files(corpus, model.max_length)
        return Target(_family_of(model), asked or usual, shard_bytes, carried=corpus, made=made)
    try:
        start: Mapping[str, Any] = json.loads((carried / CONFIG).read_text())
        record = json.loads((carried / origin.RECORD).read_text())
        others = record["other_dtypes"] if asked in (None, record["dtype"]) else {}
        return Target(
            FAMILIES[start["model_type"]], asked or record["dtype"], shard_bytes, start, carried, record["bare"], others
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{carried}: what came along from the model's first folder is not whole ({error!r}). Copy {CONFIG} and"
            f" {origin.RECORD} from another import of that folder, or remove {carried} to export as from nothing."
        ) from None


def _family_of(model: ModelConfig) -> Family:
    """The first family that can say what the model computes; InputError with what each lacks."""
    reasons = []
    for family in FAMILIES.values():
        try:
            family.config(model, None, "config.json")
            family.weights(model)
            return family
        except InputError as error:
            reasons.append(str(error))
    raise InputError("no family of Hugging Face models computes what this one does:\n  " + "\n  ".join(reasons))


def _corpus(stored: Mapping[str, Any]) -> Path | None:
    """The prepared corpus of a run, whose tokenizer is the model's; None where it is gone or there was none."""
    for path in stored.get("data", {}).get("paths") or []:
        corpus = expanded(path)
        if (corpus / "tokenizer.json").exists() and (corpus / MANIFEST).exists():
            return corpus
    return None
