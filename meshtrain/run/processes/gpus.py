"""Which GPUs of its host are this process's? From what the launcher says and what CUDA_VISIBLE_DEVICES leaves visible.

The traps that this sees before any GPU is touched: one process per node that is shown one of its eight GPUs, and eight
processes per node that are each shown all eight.
"""

import itertools
import re
from collections.abc import Mapping

from meshtrain.errors import InputError
from meshtrain.run.digits import read_digits
from meshtrain.run.processes.fact import Fact

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ON_NODE, PER_NODE, PER_TASK = "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"
GPU_VARIABLES = (*VISIBLE, ON_NODE, PER_NODE, PER_TASK)
_ENTRY = re.compile(r"\d+|(GPU|MIG)-\S+")  # a number, or the beginning of a name as nvidia-smi -L lists them


def own_gpus(
    environ: Mapping[str, str], local_process: int, num_local: int, gpus_there: int | None
) -> Fact[tuple[int, ...]] | None:
    """The numbers, among the visible GPUs, of those that this process takes; None where nothing is known about GPUs.

    gpus_there: device files on this machine, or None. InputError where GPUs would stay idle or be shared, and where
    what is visible and what Slurm gave contradict each other.
    """
    name = next((name for name in VISIBLE if name in environ), None)
    per_task, given = _amount(environ, PER_TASK), _amount(environ, ON_NODE)
    visible = given if name is None and given is not None else _visible(environ, name, gpus_there)
    if visible is None:
        return None
    source = f"{name}={environ[name]}" if name else "device files of this machine" if given is None else ON_NODE
    whole = visible if given is None else given
    if given is not None and name:
        source += f", {ON_NODE}={given}"
    if per_task is not None:  # dealt out by Slurm, and some versions count on the node what one task sees
        source += f", {PER_TASK}={environ[PER_TASK]}"
        whole = max(whole, _amount(environ, PER_NODE) or 0, min(per_task, visible) * num_local)
    if visible > whole:
        raise InputError(
            f"GPUs: {name}={environ.get(name or '')} shows {visible} GPUs, but the job has {whole} of this host"
            f" ({ON_NODE}={given}). Leave {name} to Slurm (unset it where it is exported by hand), or ask for"
            f" --gpus-per-node={visible}."
        )
    if num_local == 1:
        if visible < whole:
            raise InputError(_one_process_sees_few(name, environ.get(name or "", ""), visible, whole))
        return Fact(tuple(range(visible)), source)
    bound = visible * num_local <= whole or visible == 1 or visible == per_task  # the launcher has dealt the GPUs out
    if bound:
        if visible * num_local < whole:
            raise InputError(
                f"GPUs: {num_local} processes on this host see {visible} GPU{'s' * (visible != 1)} each ({source}), so"
                f" {whole - visible * num_local} of its {whole} GPUs stay idle. {whole} tasks on each node with one GPU"
                " each, or one task with all of them, would work."
            )
        return Fact(tuple(range(visible)), source)
    if visible % num_local:
        raise InputError(
            f"GPUs: {visible} visible GPUs ({source}) cannot be dealt out evenly to {num_local} processes on this host;"
            f" {visible} tasks on each node, or one, would work."
        )
    share = visible // num_local
    first = local_process * share
    return Fact(tuple(range(first, first + share)), f"{source}; shared by {num_local} processes")


def hidden(environ: Mapping[str, str]) -> bool:
    """Whether a variable hides all GPUs, as an empty CUDA_VISIBLE_DEVICES does: then the CPU is meant."""
    name = next((name for name in VISIBLE if name in environ), None)
    return name is not None and _count(environ[name], name) == 0


def _visible(environ: Mapping[str, str], name: str | None, gpus_there: int | None) -> int | None:
    return _count(environ[name], name) if name else gpus_there


def _amount(environ: Mapping[str, str], name: str) -> int | None:
    """The number in `8`, `a100:8` or `gpu:a100:8`; None where there is none."""
    last = environ.get(name, "").split(",")[0].rpartition(":")[2]
    return read_digits(last)


def _count(text: str, name: str) -> int:
    """CUDA reads the list up to the first entry that is not valid (-1, Slurm's NoDevFiles); it takes one MIG part."""
    entries = [part.strip() for part in text.split(",")]
    valid = list(itertools.takewhile(_ENTRY.fullmatch, entries))
    if len(set(valid)) < len(valid):
        twice = next(entry for entry in valid if valid.count(entry) > 1)
        raise InputError(f"{name}={text}: {twice} is named twice, and CUDA then shows no GPU at all; name each once.")
    parts = [entry for entry in valid if entry.startswith("MIG-")]
    return 1 if parts else len(valid)


def _one_process_sees_few(name: str | None, value: str, visible: int, whole: int) -> str:
    limit = f" ({name}={value} hides the others)" if name else ""
    if "MIG-" in value:
        return (
            f"GPUs: this host has {whole} for the job and one process, but CUDA shows a process one MIG part only"
            f" ({name}={value}). --ntasks-per-node={whole} --gpus-per-task=1 starts one process for each part."
        )
    return (
        f"GPUs: this host has {whole} GPUs for the job and one process, which sees {visible} of them{limit}. A task"
        f" sees its own share only: --gpus-per-task={whole} or --gpu-bind=none shows the process all {whole};"
        f" --ntasks-per-node={whole} starts one process for each GPU."
    )
