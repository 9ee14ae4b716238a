"""The session's devices: 8 virtual CPU devices, set before jax is imported; jaxtyping's checks switched on.

A test that needs what a laptop may lack is skipped with a reason that begins with "needs"; in CI, which installs all of
it, such a skip is a failure.
"""

import os
import signal
from collections.abc import Generator
from importlib import import_module

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from jaxtyping import install_import_hook

install_import_hook(["meshtrain.parallel", "meshtrain.model"], "beartype.beartype")

# A collective may wait long where other tests share the cores. Imported after the hook, which checks what this loads.
distributed = import_module("meshtrain.run.distributed")
os.environ["XLA_FLAGS"] += " " + " ".join(distributed.CPU_FLAGS)
distributed.make_room(8)

# What a shell starts in the background has interrupts ignored, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and "needs" in reason and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{reason}: in CI everything is installed and nothing may be skipped"
    return report
