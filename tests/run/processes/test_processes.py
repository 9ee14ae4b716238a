"""Two real processes train one run (cases D1 and S2): the rows they read, the numbers they find, how they end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import psutil
import pytest

from meshtrain.run.processes.devices import axes_by_host
from meshtrain.run.processes.meeting import free_port
from tests.run import hosts
from tests.run.processes.reader import MESHES, rows_held
from tests.run.runs import ROOT, Process, numbers, records, run_here, write_run

CLOSE = 1e-5  # a loss: sums over processes are added up in another order


@pytest.mark.slow
def test_processes_read_their_own_rows_where_data_differs_and_the_same_where_it_does_not() -> None:
    """Case D1, with what one process with all devices, or with half as many, reads."""
    address = f"127.0.0.1:{free_port()}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    readers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.run.processes.reader", address, str(index)],
            stdout=subprocess.PIPE, text=True, cwd=ROOT, env=hosts.environment(**flags),
        )
        for index in range(2)
    ]  # fmt: skip
    said = [reader.communicate(timeout=120)[0].splitlines()[-1] for reader in readers]
    two: list[dict[str, dict[str, dict[str, Any]]]] = [json.loads(line) for line in said]
    one = {name: rows_held(mesh) for name, mesh in MESHES.items()}
    four = rows_held({"data": 2, "model": 2})
    for step, rows in one["data"].items():
        first, second = (held["data"][step] for held in two)
        assert not first.keys() & second.keys()
        assert len(first) == len(second) == 4
        assert first | second == rows == one["model"][step] == four[step]
        assert list(rows) == [str(8 * int(step) + row) for row in range(8)]
        assert two[0]["model"][step] == two[1]["model"][step] == rows
    assert one["data"]["5"] != one["data"]["6"]  # this would see rows that stand still


@pytest.mark.slow
def test_processes_may_come_and_go_late_and_one_goes_on_with_their_run(
    tmp_path: Path, cache: Path, unbroken: Path, here: list[str]
) -> None:
    """Case S2: process 0 comes 3 s late, process 1 ends late. The run of two, then of one, is CLOSE to the unbroken."""
    run = write_run(tmp_path)
    both = hosts.start(*run, "--config.steps=5", cache=cache, late={0: 3.0}, address=hosts.loopback())
    both[0].wait_for("step 4/5")
    both[1].signal(signal.SIGSTOP)
    time.sleep(2)
    both[1].signal(signal.SIGCONT)
    assert hosts.finish_all(both) == [0, 0], both[0].output + both[1].output
    assert "mesh axes inside a host: data=8" in both[0].output  # both processes are on this host
    assert "step" not in both[1].output  # only process 0 reports
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step_00000003", "step_00000005"]
    assert run_here(*run, *here) == 0
    losses = [[record["loss"] for record in records(folder).values()] for folder in (tmp_path, unbroken)]
    assert losses[0] == pytest.approx(losses[1], abs=CLOSE)
    exact = ("step", "learning_rate", "tokens", "skipped")
    assert numbers(tmp_path, *exact) == numbers(unbroken, *exact)


@pytest.mark.slow
def test_a_host_with_another_config_is_named_on_all(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    place = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2"]
    both = [Process(*run, *place, "--process", "0"), Process(*run, "--config.seed=1", *place, "--process", "1")]
    assert hosts.finish_all(both) == [2, 2]
    for process in both:
        assert "error: config.seed: the processes do not start the same run" in process.output
        assert "has 1" in process.output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_process_that_cannot_go_on_ends_all_with_its_reason(tmp_path: Path, cache: Path) -> None:
    """A process that is killed: its signal is told, the other one ends too, and so does launch, in bounded time."""
    run = write_run(tmp_path)
    command = [sys.executable, "-m", "meshtrain.launch", "--processes", "2", "--devices", "4", "--"]
    trainer = [*run, "--config.steps=100000", "--config.log_every=1", f"--config.compilation_cache={cache}"]
    with subprocess.Popen(
        [*command, *trainer], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=hosts.environment()
    ) as launch:
        assert launch.stdout is not None
        lines = []
        for line in launch.stdout:
            lines.append(line)
            if "step 10/" in line:
                break
        pids = [int(line.split()[-1]) for line in lines if line.startswith("[launch] process")]
        psutil.Process(pids[1]).kill()
        begun = time.monotonic()
        rest = launch.stdout.read()
        assert launch.wait(60) == 128 + signal.SIGKILL
        assert time.monotonic() - begun < 30
    assert "[launch] process 1 ended with signal SIGKILL" in rest
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_axes_inside_and_across_hosts_are_told() -> None:
    class Device:
        def __init__(self, process_index: int) -> None:
            self.process_index = process_index

    class Mesh:
        axis_names = ("a", "b", "c")
        shape = {"a": 2, "b": 2, "c": 2}  # noqa: RUF012

    import numpy as np

    mesh: Any = Mesh()
    mesh.devices = np.array([Device(index // 2) for index in range(8)], dtype=object).reshape(2, 2, 2)
    assert axes_by_host(mesh, ["n1", "n1", "n2", "n2"]) == "mesh axes inside a host: b=2, c=2; across hosts: a=2"
    assert axes_by_host(mesh, ["n1", "n2", "n3", "n4"]) == "mesh axes inside a host: c=2; across hosts: a=2, b=2"
    assert axes_by_host(mesh, ["n1"] * 4).endswith("across hosts: none")
    assert len(jax.devices()) == 8
