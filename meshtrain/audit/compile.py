"""The real training step, compiled for any number of GPUs on a machine without one, or for virtual CPU devices.

The compiler for GPUs is chosen by the environment before jax is imported (run/compiler.py does it). A program for CPUs
shows which collectives there are; its bytes and its memory are not a GPU's: CPU_CANNOT_TELL.
"""

from importlib.util import find_spec

import jax

from meshtrain.audit.targets import target
from meshtrain.cost.cluster import USABLE
from meshtrain.errors import InputError
from meshtrain.io.rows import batch_fields
from meshtrain.layout import Layout, Placement, build_mesh, place
from meshtrain.step import StepConfig
from meshtrain.step.lower import lower_step

# A run's compiler hides exchanges as far as 95 % of the memory that JAX takes allow; without a GPU it assumes that JAX
# takes 80 % of the device's.
MEMORY_LIMIT: dict[str, bool | str] = {"xla_gpu_memory_limit_slop_factor": str(round(95 * USABLE / 0.80))}

PLUGIN = "jax_cuda13_plugin"
INSTALL = "pip install 'meshtrain[cuda13]' (4 GB, no GPU needed)"

CPU_CANNOT_TELL = (
    "bf16 is widened to float32, so bytes of activations and weights count double",
    "there is no reduce-scatter: it shows as an all-reduce of the whole array",
    "memory is that of a CPU's kernels and schedule",
    "nothing is overlapped: collectives have no start and end",
)


def can_compile_for_gpus() -> bool:
    """Whether the CUDA libraries are installed."""
    return find_spec(PLUGIN) is not None


def gpu_devices(gpu: str, num_devices: int, per_node: int = 8) -> list[jax.Device]:
    """Devices of a kind of GPU that only the compiler knows, `per_node` to a node (or all in one, if they are fewer).

    InputError without the CUDA libraries, for an unknown GPU, or where the nodes would not be full.
    """
    if not can_compile_for_gpus():
        raise InputError(f"--backend gpu: the CUDA libraries are missing; {INSTALL}, or --backend cpu.")
    text = target(gpu).text
    in_node = min(per_node, num_devices)
    if num_devices % in_node:
        raise InputError(
            f"--gpus: {num_devices} do not fill nodes of {per_node}; {num_devices // per_node * per_node} or"
            f" {-(-num_devices // per_node) * per_node} would work."
        )
    from jax.experimental import topologies

    topology = f"1x{num_devices // in_node}x{in_node}"
    return list(topologies.get_topology_desc(platform="cuda", target_config=text, topology=topology).devices)


def place_on_gpus(layout: Layout, gpu: str, num_devices: int, per_node: int = 8) -> Placement:
    """The layout on GPUs that need not exist; errors as in `gpu_devices` and of the mesh."""
    sizes = layout.mesh.resolve(num_devices)
    return Placement(layout, build_mesh(sizes, gpu_devices(gpu, num_devices, per_node)))


def compile_step(
    config: StepConfig, layout: Layout, num_devices: int, *, global_batch: int, length: int, packed: bool = False,
    gpu: str | None = "h100", per_node: int = 8, options: dict[str, bool | str] | None = None,
) -> jax.stages.Compiled:  # fmt: skip
    """The training step under a layout for so many of a kind of GPU; with gpu=None for this process's CPU devices.

    packed: whether rows hold several documents (DataConfig.packed). options: XLA's, beside those of the trainer. The
    result has `as_text()` and `memory_analysis()`. InputError for what the layout cannot do, or see `gpu_devices`.
    """
    placement = place(layout, num_devices) if gpu is None else place_on_gpus(layout, gpu, num_devices, per_node)
    placement.check_batch(global_batch)
    lowered = lower_step(config, placement, global_batch, length, batch_fields(packed))
    return lowered.compile(compiler_options=(MEMORY_LIMIT if gpu else {}) | (options or {}))
