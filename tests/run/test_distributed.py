"""The machine as a run asks for it: how many CPU devices, which cache folder, damaged entries of the cache."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from meshtrain.errors import InputError
from meshtrain.run import distributed
from meshtrain.run.arguments import parse
from meshtrain.run.config import load
from meshtrain.run.report import peak_flops, peak_memory
from tests.run.runs import LAYOUTS, write_run

# (arguments, cpu_devices in the file, a GPU is there) -> CPU devices to make; None: the GPU's.
DEVICES: list[tuple[list[str], int | None, bool, int | None]] = [
    ([], 8, False, 8),
    ([], None, False, 1),
    ([], 8, True, None),
    (["--config.cpu_devices=4"], 8, False, 4),
    (["--config.cpu_devices=4"], 8, True, 4),
    (["--layout.mesh.data=4"], 8, False, 4),
    (["--layout.mesh.data=4", "--layout.mesh.more=2"], 1, False, 8),
    (["--layout.mesh.data=4", "--config.cpu_devices=8"], 8, False, 8),  # does not fit: the mesh says so
    (["--layout", str(LAYOUTS / "zero1.py")], 8, False, 8),
    (["--layout.mesh.data=4"], 8, True, None),
    (["--layout.mesh=3"], 8, False, 8),  # no mesh at all: the layout says so
]


@pytest.mark.parametrize(("flags", "in_file", "gpu", "wanted"), DEVICES)
def test_a_flag_counts_first_then_the_gpu_then_the_mesh_then_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    in_file: int | None,
    gpu: bool,
    wanted: int | None,
) -> None:
    monkeypatch.setattr(distributed, "has_gpu", lambda: gpu)
    request = load(parse([*write_run(tmp_path, cpu_devices=in_file), *flags]))
    assert distributed._cpu_devices(request) == wanted


def test_jax_takes_what_plan_counts_on_unless_the_user_says_another_share(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = distributed.MEMORY_VARIABLES
    for given, wanted in (({}, "0.92"), ({new: "0.5"}, "0.5"), ({old: "0.6"}, None)):
        environ = dict(given)
        monkeypatch.setattr(distributed.os, "environ", environ)
        distributed.take_memory()
        assert environ.get(new) == wanted  # (JAX refuses both names at once)


def test_a_gpu_is_there_only_with_its_device_and_its_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    devices, plugins = ["/dev/nvidia0"], {"jax_cuda13_plugin"}
    monkeypatch.setattr(distributed.glob, "glob", lambda pattern: devices if "nvidia" in pattern else [])
    monkeypatch.setattr(distributed.importlib.util, "find_spec", lambda name: name in plugins or None)
    monkeypatch.delenv("JAX_PLATFORMS")
    assert distributed.has_gpu()
    for value, is_there in (("", False), ("-1", False), ("1", True), ("GPU-1f", True)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert distributed.has_gpu() == is_there
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert not distributed.has_gpu()
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert distributed.has_gpu()
    plugins.clear()
    assert not distributed.has_gpu()
    plugins.add("jax_cuda13_plugin")
    devices.clear()
    assert not distributed.has_gpu()


def test_the_cache_is_the_configs_the_environments_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MESHTRAIN_CACHE", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/users")
    processor = distributed.cache_folder(None).name
    assert distributed.cache_folder(None) == Path("/users/meshtrain/compiled") / processor
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/jax")
    assert distributed.cache_folder(None) == Path("/jax") / processor
    monkeypatch.setenv("MESHTRAIN_CACHE", "/mine")
    assert distributed.cache_folder(None) == Path("/mine") / processor
    assert distributed.cache_folder("/configured") == Path("/configured") / processor


def test_compiled_programs_are_not_kept_where_that_is_impossible_or_not_wanted(tmp_path: Path, here: list[str]) -> None:
    for folder, words in (("/dev/null/cache", "warning: compiled programs are not kept: /dev/null/cache"), ("off", "")):
        said: list[str] = []
        jax.config.update("jax_enable_compilation_cache", True)
        distributed._use_cache(
            load(parse([*write_run(tmp_path), f"--config.compilation_cache={folder}"])).config, said.append
        )
        assert not jax.config.values["jax_enable_compilation_cache"]
        assert "".join(said).startswith(words)
        assert bool(said) == bool(words)


def test_a_damaged_entry_of_the_cache_is_replaced(tmp_path: Path, here: list[str]) -> None:
    config = load(parse([*write_run(tmp_path), f"--config.compilation_cache={tmp_path / 'cache'}"])).config
    said: list[str] = []
    distributed._use_cache(config, said.append)
    compilation_cache.reset_cache()

    def compile_again() -> None:
        def mended_program(x: jax.Array) -> jax.Array:
            return jnp.sin(x) + 1

        jax.jit(mended_program)(jnp.ones(3))

    compile_again()
    (entry,) = (tmp_path / "cache").rglob("jit_mended_program-*")
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="Error reading") as caught:  # pytest has its own way to show warnings
        compile_again()
    assert entry.read_bytes() == whole[: len(whole) // 2]  # so it would stay for ever
    distributed._use_cache(config, said.append)
    for warning in caught:
        distributed.warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    assert not entry.exists()
    assert said == [
        line for line in said if line.startswith("the compiled program of jit_mended_program could not be read")
    ]
    assert len(said) == 1
    compile_again()
    assert entry.exists()


def test_the_compilers_flags_come_from_the_clusters_file_and_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    cluster = str(LAYOUTS.parent / "clusters" / "h100_roce.py")
    run = write_run(tmp_path)
    said: list[str] = []
    for gpu, path, expected in ((True, cluster, 1), (True, None, 0), (False, cluster, 0)):
        monkeypatch.setattr(distributed, "has_gpu", lambda gpu=gpu: gpu)
        request = load(parse([*run, *([f"--config.cluster={path}"] if path else [])]))
        assert len(distributed._cluster_flags(request, said.append)) == expected
    assert said == [f"XLA flags of {cluster}: --xla_gpu_enable_latency_hiding_scheduler=true"]
    with pytest.raises(InputError, match=r"config\.cluster=none\.py: there is no such file"):
        distributed._cluster_flags(load(parse([*run, "--config.cluster=none.py"])), said.append)


def test_cpu_devices_are_dealt_out_to_processes() -> None:
    assert distributed._own_share(8, 2) == 4
    with pytest.raises(InputError, match=r"config\.cpu_devices: 8 devices .* 3 processes; config\.cpu_devices=6"):
        distributed._own_share(8, 3)


@pytest.mark.parametrize(
    ("kind", "platform", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "gpu", 989e12),
        ("NVIDIA H100 PCIe", "gpu", 756e12),
        ("NVIDIA H200", "gpu", 989e12),
        ("NVIDIA A100-SXM4-80GB", "gpu", 312e12),
        ("NVIDIA B200", "gpu", 2.25e15),
        ("NVIDIA GeForce GTX 9000", "gpu", None),
        ("cpu", "cpu", None),
    ],
)
def test_no_peak_is_invented(kind: str, platform: str, peak: float | None) -> None:
    assert peak_flops(cast(Any, SimpleNamespace(device_kind=kind, platform=platform))) == peak


def test_the_peak_of_memory_is_that_of_the_fullest_device() -> None:
    def device(*held: int) -> Any:
        stats = {"peak_bytes_in_use": held[0], "bytes_in_use": 1} if held else None
        return SimpleNamespace(memory_stats=lambda: stats)

    assert peak_memory([device(5), device(7), device(6)]) == 7
    assert peak_memory([device(), device()]) is None
    assert peak_memory(jax.local_devices()) is None  # CPUs do not say


def test_asking_for_gpus_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(distributed, "has_gpu", lambda: False)
    request = load(parse(write_run(tmp_path)))
    with pytest.raises(InputError, match=r"--gpus: there is no GPU to use: JAX finds none"):
        distributed.set_up_gpus(request, None, print)
    monkeypatch.setattr(distributed, "has_gpu", lambda: True)
    monkeypatch.setattr(distributed, "set_up", lambda request, say: 4)
    assert distributed.set_up_gpus(request, None, print) == 4
    assert distributed.set_up_gpus(request, 2, print) == 2
    with pytest.raises(InputError, match=r"--devices 8: this machine has 4 GPUs; --devices 4 would work"):
        distributed.set_up_gpus(request, 8, print)
    request = load(parse([*write_run(tmp_path), "--config.cpu_devices=8"]))
    with pytest.raises(InputError, match="the CPU was chosen"):
        distributed.set_up_gpus(request, None, print)
