"""How fast a Hugging Face folder is read: python scripts/import_bench.py [FOLDER]

Makes a Llama of 1.03e9 random bf16 weights (2.07 GB in three files; kept where FOLDER is named) and times, each time
with the files dropped from the page cache: a plain read of them, the weights as float32 onto one CPU device, and
`convert import` from the door to its end, which also writes the checkpoint of 4.13 GB. Beside them what the machine
takes to write as many bytes as the checkpoint has, and to hand out as much fresh memory as files and weights need:
that comes first, for a virtual machine whose host has to find the memory may need seconds for each gigabyte.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from meshtrain.io.hf import Folder, open_folder, read_params
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.writing import Target, write_folder
from meshtrain.layout import map_specs, named_specs, single_placement
from meshtrain.model import ModelConfig, count_parameters, describe

MODEL = ModelConfig(
    num_layers=20, embed=2048, num_heads=32, num_kv_heads=8, head_dim=64, mlp=5632, vocab=32000, max_length=2048
)
ROUNDS = 5


def make(path: Path) -> None:
    """The folder; its numbers are one random block over and over."""
    specs = dict(named_specs(describe(MODEL)))
    block = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    target = Target(FAMILIES["llama"], "BF16", shard_bytes=10**9)
    write_folder(path, MODEL, target, lambda name: np.resize(block, specs[name].shape))


def memory(which: str) -> int:
    """Bytes that Linux says this process has (VmRSS), or had at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def forget(files: list[Path]) -> None:
    """The files leave the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def plain_read(files: list[Path]) -> float:
    """Seconds to read the files from beginning to end, a megabyte at a time, which stays in the core's cache."""
    forget(files)
    buffer = bytearray(1 << 20)
    begun = time.perf_counter()
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.perf_counter() - begun


def read(folder: Folder, files: list[Path]) -> tuple[float, Any]:
    """Seconds from the open folder to its weights on the device, and these."""
    here, specs = single_placement(), describe(folder.model)
    targets = map_specs(
        lambda spec: jax.ShapeDtypeStruct(
            spec.shape, spec.dtype, sharding=here.sharding("optimizer", spec.dims, spec.shape)
        ),
        specs,
    )
    forget(files)
    begun = time.perf_counter()
    params = jax.block_until_ready(read_params(folder, specs, targets))
    return time.perf_counter() - begun, params


def fresh_memory(size: int) -> float:
    """Seconds until so many bytes that nobody had before are there, touched by as many threads as read weights."""
    begun = time.perf_counter()
    memory = np.empty(size, np.uint8)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda part: part.fill(1), np.array_split(memory, 64)))
    return time.perf_counter() - begun


def plain_write(path: Path, size: int) -> float:
    """Seconds to write so many bytes to the disk."""
    block = np.random.default_rng(0).bytes(1 << 24)
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(block)):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begun
    path.unlink()
    return seconds


def door(path: Path, to: Path, files: list[Path]) -> float:
    """Seconds of `convert import`."""
    forget(files)
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "meshtrain.convert", "import", str(path), "--to", str(to)], check=True)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.folder or Path(scratch)) / "llama_1b"
        if not path.exists():
            make(path)
        files = sorted(path.glob("*.safetensors"))
        folder, size = open_folder(path), sum(file.stat().st_size for file in files)
        jax.block_until_ready(jax.numpy.zeros(1))  # what JAX itself takes is no part of it
        before = memory("VmRSS")
        on_device = 4 * count_parameters(folder.model)
        plain, taken, fresh, processor = [], [], [], []
        for _ in range(ROUNDS):
            fresh.append(fresh_memory(on_device + size))
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
            plain.append(plain_read(files))
            used = time.process_time()
            seconds, params = read(folder, files)
            taken.append(seconds)
            processor.append(time.process_time() - used)
            assert on_device == sum(array.nbytes for array in jax.tree.leaves(params))
            peak = memory("VmHWM") - before
            del params
        largest = max(tensor.num_bytes for tensor in folder.tensors.values())
        middle = {
            "plain_read_s": statistics.median(plain),
            "fresh_memory_s": statistics.median(fresh),
            "import_s": statistics.median(taken),
            "import_cpu_s": statistics.median(processor),
        }
        found = {
            "gigabytes": size / 1e9,
            **middle,
            "import_over_read": middle["import_s"] / middle["plain_read_s"],
            "on_device_gb": on_device / 1e9,
            "beside_it_gb": (peak - on_device) / 1e9,
            "largest_tensor_gb": largest / 1e9,
            "convert_import_s": door(path, Path(scratch) / "imported", files),
            "plain_write_s": plain_write(Path(scratch) / "written", on_device),
        }
        rounds = {"plain_reads_s": plain, "imports_s": taken, "fresh_memories_s": fresh}
        print(json.dumps(
            {name: round(value, 3) for name, value in found.items()}
            | {name: [round(value, 2) for value in values] for name, values in rounds.items()}
        ))  # fmt: skip


if __name__ == "__main__":
    main()
