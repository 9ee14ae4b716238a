"""Which GPUs of its host are this process's? From what the launcher says and what CUDA_VISIBLE_DEVICES leaves visible.

The traps that this sees before any GPU is touched: one process per node that is shown one of its eight GPUs, and eight
processes per node that are each shown all eight.
"""

from collections.abc import Mapping

from meshtrain.errors import InputError
from meshtrain.run.processes.fact import Fact

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
ON_NODE = "SLURM_GPUS_ON_NODE"
GPU_VARIABLES = (*VISIBLE, ON_NODE)


def own_gpus(
    environ: Mapping[str, str], local_process: int, num_local: int, gpus_there: int | None
) -> Fact[tuple[int, ...]] | None:
    """The numbers, among the visible GPUs, of those that this process takes; None where nothing is known about GPUs.

    gpus_there: device files on this machine, or None. InputError where GPUs would stay idle or be shared.
    """
    name = next((name for name in VISIBLE if name in environ), None)
    visible = _count(environ[name]) if name else gpus_there
    on_node = int(environ[ON_NODE]) if environ.get(ON_NODE, "").isdecimal() else None
    if visible is None and on_node is None:
        return None
    source = f"{name}={environ[name]}" if name else "device files of this machine" if visible is not None else ON_NODE
    visible = on_node or 0 if visible is None else visible
    whole = visible if on_node is None else on_node
    if on_node is not None and ON_NODE not in source:
        source += f", {ON_NODE}={on_node}"
    if num_local == 1:
        if visible < whole:
            raise InputError(_one_process_sees_few(name, visible, whole))
        return Fact(tuple(range(visible)), source)
    bound = visible * num_local <= whole or visible == 1  # the launcher has dealt the GPUs out
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


def _count(text: str) -> int:
    """CUDA reads the list up to the first entry that is not valid; Slurm writes NoDevFiles for none."""
    count = 0
    for item in filter(None, (part.strip() for part in text.split(","))):
        if item.startswith("-") or item == "NoDevFiles":
            break
        count += 1
    return count


def _one_process_sees_few(name: str | None, visible: int, whole: int) -> str:
    limit = f" ({name} hides the others)" if name else ""
    return (
        f"GPUs: this host has {whole} GPUs for the job and one process, which sees {visible} of them{limit}. A task"
        f" sees its own share only: --gpus-per-task={whole} or --gpu-bind=none shows the process all {whole};"
        f" --ntasks-per-node={whole} starts one process for each GPU."
    )
