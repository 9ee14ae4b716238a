"""What XLA has to know of a GPU to compile for it where there is none: the text form of its GpuTargetConfig.

Figures are those that XLA reads from the device itself, from the vendors' data sheets: per multiprocessor and per chip.
"""

from dataclasses import dataclass

from meshtrain.errors import InputError, nearest


@dataclass(frozen=True)
class Target:
    """A GPU for the compiler. Bytes, bytes/s and GHz; cores: streaming multiprocessors; units: FP32 lanes of each."""

    name: str
    capability: tuple[int, int]
    cores: int
    units: int
    threads_per_core: int
    shared_per_core: int
    shared_per_block: int
    l2: int
    bandwidth: int
    clock_ghz: float
    memory: int

    @property
    def text(self) -> str:
        """The proto as text."""
        return f"""gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: {self.shared_per_core} threads_per_core_limit: {self.threads_per_core}
core_count: {self.cores} fpus_per_core: {self.units}
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
memory_bandwidth: {self.bandwidth} l2_cache_size: {self.l2} clock_rate_ghz: {self.clock_ghz}
device_memory_size: {self.memory} shared_memory_per_block_optin: {self.shared_per_block}
cuda_compute_capability {{ major: {self.capability[0]} minor: {self.capability[1]} }}
registers_per_core_limit: 65536 registers_per_block_limit: 65536 }}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }} runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{self.name}" """


KIB, MIB = 1 << 10, 1 << 20

TARGETS: dict[str, Target] = {
    "h100": Target(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 228 * KIB, 227 * KIB, 50 * MIB, 3_352_320_000_000, 1.98,
        84_929_347_584,
    ),
    "h200": Target(
        "NVIDIA H200 141GB HBM3e", (9, 0), 132, 128, 2048, 228 * KIB, 227 * KIB, 50 * MIB, 4_800_000_000_000, 1.98,
        151_397_597_184,
    ),
    "a100": Target(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 164 * KIB, 163 * KIB, 40 * MIB, 2_039_040_000_000, 1.41,
        85_100_068_864,
    ),
    "l40s": Target(
        "NVIDIA L40S", (8, 9), 142, 128, 1536, 100 * KIB, 99 * KIB, 96 * MIB, 864_000_000_000, 2.52, 47_697_362_944,
    ),
}  # fmt: skip

# Known, and yet no target.
REFUSED = {"v100": "CUDA 13 has no compiler for it any more (compute capability 7.0)"}


def target(gpu: str) -> Target:
    """The target of a GPU by its short name, such as "h100"; InputError for one that cannot be compiled for."""
    if gpu in TARGETS:
        return TARGETS[gpu]
    known = ", ".join(TARGETS)
    why = REFUSED.get(gpu, "the compiler's figures of it are not known here")
    raise InputError(
        f"gpu: {gpu!r} cannot be compiled for: {why}.{nearest(gpu, TARGETS)} There are: {known}; `--backend cpu` shows"
        " what a CPU compiler can tell."
    )
