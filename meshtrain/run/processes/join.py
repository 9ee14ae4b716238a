"""The start of several processes: they meet, compare what they are about to run, and only then does JAX start."""

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshtrain
from meshtrain.errors import Exit, PeerError
from meshtrain.run.processes import table
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.meeting import meet
from meshtrain.run.processes.peers import Peers
from meshtrain.run.watch.abort import on_abort

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # the variables that gRPC looks at, in its order
WITHOUT_PROXY = ("no_grpc_proxy", "no_proxy")
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy")


def join(me: ThisProcess, run: dict[str, Any], say: Callable[[str], None]) -> Peers:
    """Returns when all processes are there and JAX's coordination service connects them; with one, at once.

    run: flat facts about the run that all must share, besides code and versions. PeerError, InputError: see `meet`.
    """
    if me.count == 1:
        return Peers(me)
    say(table.describe(me))
    meet(me, code_facts() | run)
    _pass_by_proxies(me)
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM away from the loop
    on_abort(_lost_at_the_start)  # what JAX does where process 0 goes away from here on
    try:
        jax.distributed.initialize(
            me.coordinator,
            me.count,
            me.index,
            local_device_ids=list(me.gpus) if me.gpus and me.shares_host else None,
            cluster_detection_method="deactivate",
            initialization_timeout=int(me.wait),
        )
    except RuntimeError as error:
        raise PeerError(f"{me}: JAX's service at {me.coordinator} did not start: {error}") from None
    return Peers(me)


def _pass_by_proxies(me: ThisProcess) -> None:
    """JAX's service speaks gRPC, which would look for the coordinator behind a proxy of the environment, for ever."""
    if not any(os.environ.get(name) for name in PROXIES):
        return
    host = (me.coordinator or "").rpartition(":")[0].strip("[]")
    known = next((os.environ[name] for name in WITHOUT_PROXY if os.environ.get(name)), None)
    os.environ[WITHOUT_PROXY[0]] = ",".join(filter(None, (known, host)))


def _lost_at_the_start() -> None:
    """From the thread in which JAX gives up: the end, with the code for it."""
    print("error: process 0, or the way to it, was lost while the processes met", file=sys.stderr, flush=True)
    os._exit(Exit.PEER_LOST)


def code_facts() -> dict[str, Any]:
    """What must be the same wherever a run is computed, because it decides which programs are compiled."""
    facts: dict[str, Any] = {"meshtrain": f"{meshtrain.__version__} (sources {_sources()})"}
    facts |= {name: importlib.metadata.version(name) for name in LIBRARIES}
    facts["python"] = ".".join(platform.python_version_tuple()[:2])
    facts["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")
    facts["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "")
    return facts


def _sources() -> str:
    """A short digest of this package's files."""
    root = Path(meshtrain.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:10]
