"""Caches of compiled programs for the session's runs, gone with it: the user's own is never touched.

Processes have one of their own: a kill may leave a torn entry, which is a warning, which is an error in a test.
"""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.run.runs import run_here, write_run

CHANGED = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs that processes share."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="session")
def cache_here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled programs of runs inside this process."""
    return tmp_path_factory.mktemp("compiled-here")


@pytest.fixture
def here(cache_here: Path) -> Iterator[list[str]]:
    """Arguments for a run inside this process."""
    with own_configuration():
        yield [f"--config.compilation_cache={cache_here}"]


@pytest.fixture(scope="session")
def unbroken(cache_here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 8 steps that was never interrupted. Not to be changed: copy it."""
    folder = tmp_path_factory.mktemp("unbroken")
    with own_configuration():
        assert run_here(*write_run(folder), f"--config.compilation_cache={cache_here}") == 0
    return folder


@contextlib.contextmanager
def own_configuration() -> Iterator[None]:
    """What a run inside this process changes in JAX's configuration is put back."""
    jax.devices()  # the session's 8, before a run could make its own
    before = {key: getattr(jax.config, key) for key in CHANGED}
    show = warnings.showwarning
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        warnings.showwarning = show
        for key, value in before.items():
            jax.config.update(key, value)
        compilation_cache.reset_cache()
