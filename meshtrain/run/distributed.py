"""The machine as JAX will see it, set up before JAX looks: virtual CPU devices, the cache of compiled programs.

With several processes `processes.join` comes first: their devices are then counted together.
"""

import contextlib
import glob
import hashlib
import importlib.util
import math
import os
import platform
import re
import socket
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshtrain.cost.cluster import USABLE
from meshtrain.errors import InputError
from meshtrain.io.home import expanded
from meshtrain.run.cluster_file import read_cluster
from meshtrain.run.config import Request, RunConfig
from meshtrain.run.flags import TEXT
from meshtrain.run.processes import ThisProcess, recognise, table
from meshtrain.run.processes.environment import Flags
from meshtrain.run.processes.gpus import GPU_VARIABLES, hidden

CACHE_VARIABLE = "MESHTRAIN_CACHE"  # where compiled programs are kept, for all runs of a user
PROCESS_FLAGS = dict.fromkeys(("coordinator", "processes", "process", "wait"), TEXT)
GPU_DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd")
GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin")

# Virtual devices share the cores: one may reach a collective long before another, which by default ends the program.
CPU_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    "--xla_cpu_collective_call_terminate_timeout_seconds=1800",
)

MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # the second is the older name
THREADS_VARIABLE = "PJRT_NPROC"  # how many threads the CPU client has
THREADS_PER_DEVICE = 4


def make_room(num_devices: int) -> None:
    """Threads for the virtual CPU devices of this process, before its client starts.

    A collective holds a thread until its partners come, and independent ones of a device run at once, in no fixed
    order. With a thread per core or per device all of them can be held while the partners wait for one: a deadlock.
    """
    if num_devices > 1:
        os.environ.setdefault(THREADS_VARIABLE, str(max(os.cpu_count() or 1, THREADS_PER_DEVICE * num_devices)))


def take_memory() -> None:
    """JAX takes the share of a GPU's memory that `plan` counts on, unless the user has said another (alone it takes 75
    %). Before its client starts."""
    if not any(os.environ.get(name) for name in MEMORY_VARIABLES):
        os.environ[MEMORY_VARIABLES[0]] = str(USABLE)


def set_up(request: Request, say: Callable[[str], None]) -> int:
    """Configures JAX for this run and returns how many devices it has. Call it before anything touches a device."""
    given = os.environ.get("XLA_FLAGS", "").split()
    added = [*CPU_FLAGS, *_cluster_flags(request, say)]
    os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in added if flag not in given), *given])
    import jax

    _use_cache(request.config, say)
    wanted = _cpu_devices(request)
    if wanted is None:
        take_memory()
        return len(jax.devices())
    here = _own_share(wanted, request.process.count)
    make_room(here)
    try:
        if "cpu_devices" in request.flags:
            jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", here)
    except RuntimeError:  # JAX is in use already: this is a call from a program, which made its own devices
        if wanted > len(jax.devices()):
            raise InputError(
                f"config.cpu_devices={wanted}: this program has {len(jax.devices())} devices, made earlier;"
                f" config.cpu_devices={len(jax.devices())} would work."
            ) from None
        return wanted
    return len(jax.devices())


def set_up_gpus(request: Request, number: int | None, say: Callable[[str], None]) -> int:
    """`set_up` on GPUs and nothing else; how many are to be used: `number` of them, or all. InputError where there are
    none, or fewer."""
    if chose_cpu(request) or not has_gpu():
        why = "the CPU was chosen" if chose_cpu(request) else "JAX finds none (a GPU and the cuda13 extra are needed)"
        raise InputError(f"--gpus: there is no GPU to use: {why}. Without --gpus virtual CPU devices are used.")
    there = set_up(request, say)
    if number is not None and number > there:
        raise InputError(f"--devices {number}: this machine has {there} GPUs; --devices {there} would work.")
    return number or there


def make_devices(layout: Mapping[str, Any]) -> int:
    """How many devices a program without a run has for a layout: on CPUs it makes as few as fill the mesh."""
    import jax

    if has_gpu():
        return len(jax.devices())
    mesh = layout.get("mesh")
    sizes = mesh.values() if isinstance(mesh, Mapping) else []
    wanted = math.prod(size for size in sizes if isinstance(size, int) and size > 0)
    make_room(wanted)
    with contextlib.suppress(RuntimeError):  # JAX is in use already, with the devices that it has
        jax.config.update("jax_num_cpu_devices", wanted)
    return min(wanted, len(jax.devices()))


def _cluster_flags(request: Request, say: Callable[[str], None]) -> tuple[str, ...]:
    """What the compiler is told on the GPUs of the run's cluster; what XLA_FLAGS holds stands behind it and wins."""
    path = request.config.cluster
    if path is None:
        return ()
    flags = read_cluster(path, "config.cluster").xla_flags
    if not has_gpu() or chose_cpu(request):
        return ()
    say(f"XLA flags of {path}: {' '.join(flags) or 'none'}")
    return flags


def describe_devices(num_devices: int) -> str:
    """`8 virtual CPU devices`, `8 x NVIDIA H100 80GB HBM3`."""
    import jax

    device = jax.devices()[0]
    if device.platform == "cpu":
        return "1 CPU device" if num_devices == 1 else f"{num_devices} virtual CPU devices on {os.cpu_count()} cores"
    return f"{num_devices} x {device.device_kind}"


def this_process(request: Request, flags: Mapping[str, Any]) -> ThisProcess:
    """What the environment and a door's flags (PROCESS_FLAGS) say about this process. InputError: see `recognise`.

    Where the CPU was chosen, what the environment says about GPUs counts in a dry run only.
    """
    there = sum(len(glob.glob(pattern)) for pattern in GPU_DEVICES) if has_gpu() else None
    chosen = Flags(**{name: flags[name] for name in PROCESS_FLAGS if name in flags})
    about_gpus = "dry_run" in flags or not chose_cpu(request)
    environ = {name: value for name, value in os.environ.items() if about_gpus or name not in GPU_VARIABLES}
    return recognise(environ, socket.gethostname(), chosen, there if about_gpus else None)


def chose_cpu(request: Request) -> bool:
    """Whether the CPU is to be used even where there are GPUs."""
    return "cpu_devices" in request.flags or os.environ.get("JAX_PLATFORMS", "") == "cpu"


def dry_run(request: Request) -> str:
    """What a start would find out before it waits for anyone, as text."""
    me = request.process
    wanted = _cpu_devices(request) if not me.gpus else None
    return table.describe(me, None if wanted is None else _own_share(wanted, me.count))


def has_gpu() -> bool:
    """Whether JAX will find a GPU, told without starting it."""
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if chosen and not {"cuda", "rocm", "gpu"} & set(chosen.split(",")):
        return False
    there = any(glob.glob(pattern) for pattern in GPU_DEVICES) and not hidden(os.environ)
    return there and any(importlib.util.find_spec(plugin) for plugin in GPU_PLUGINS)


def _cpu_devices(request: Request) -> int | None:
    """How many CPU devices to make; None where the run has a GPU to use.

    A flag says how many in any case. Otherwise a mesh without -1 says how many it needs, and else the run's file does.
    """
    if "cpu_devices" in request.flags:
        return request.config.cpu_devices or 1
    if has_gpu():
        return None
    return _mesh_devices(request.layout) or request.config.cpu_devices or 1


def _own_share(wanted: int, num_processes: int) -> int:
    """How many of all CPU devices this process makes."""
    if wanted % num_processes:
        raise InputError(
            f"config.cpu_devices: {wanted} devices cannot be dealt out evenly to {num_processes} processes;"
            f" config.cpu_devices={num_processes * max(wanted // num_processes, 1)} would work, with a mesh of as many."
        )
    return wanted // num_processes


def _mesh_devices(layout: Mapping[str, Any]) -> int | None:
    """The devices that a mesh of fixed sizes takes; None where it takes what there is (or is not a mesh)."""
    mesh = layout.get("mesh")
    sizes = list(mesh.values()) if isinstance(mesh, Mapping) else [-1]
    return math.prod(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _use_cache(config: RunConfig, say: Callable[[str], None]) -> None:
    """Compiled programs are kept on disk between starts, unless switched off or impossible."""
    import jax

    if config.compilation_cache == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    folder = cache_folder(config.compilation_cache)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        say(f"warning: compiled programs are not kept: {folder}: {error}. --config.compilation_cache=DIR is another.")
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _mend_cache(folder, say)


def _mend_cache(folder: Path, say: Callable[[str], None]) -> None:
    """JAX warns of a damaged entry (a start that was killed while writing it) and never replaces it: remove it.

    What it warns of is said in one line each.
    """
    show_others = warnings.showwarning

    def show(message: Warning | str, *rest: Any, **named: Any) -> None:
        found = re.match(r"Error (reading|writing) persistent compilation cache entry for '(\w+)': (.*)", str(message))
        if found is None:
            show_others(message, *rest, **named)
            return
        if found[1] == "reading":
            for path in folder.glob(f"{found[2]}-*"):
                path.unlink(missing_ok=True)
        say(
            f"the compiled program of {found[2]} could not be {'read' if found[1] == 'reading' else 'kept'}: {found[3]}"
        )

    warnings.showwarning = show


def cache_folder(configured: str | None) -> Path:
    """The folder of compiled programs: one for each kind of processor, whose instructions they are made of."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    chosen = configured or os.environ.get(CACHE_VARIABLE) or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return expanded(chosen or Path(user) / "meshtrain" / "compiled") / _processor()


def _processor() -> str:
    """A short name of this machine's processor and its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = {line for line in lines if line.split(":")[0].strip() in ("model name", "flags", "Features")}
    digest = hashlib.sha256("\n".join(sorted(features)).encode()).hexdigest()[:8]
    return f"{platform.machine() or 'unknown'}-{digest}"
