"""The session's devices: 8 virtual CPU devices, set before jax is imported; jaxtyping's checks switched on.

A test that needs what a laptop may lack is skipped with a reason that begins with "needs"; in CI, which installs all of
it, such a skip is a failure.
"""

import os
from collections.abc import Generator

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from jaxtyping import install_import_hook

install_import_hook(["meshtrain.parallel", "meshtrain.model"], "beartype.beartype")


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
