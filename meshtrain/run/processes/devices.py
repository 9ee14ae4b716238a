"""The devices that JAX found, against what the launcher gave each process and against each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from meshtrain.errors import InputError
from meshtrain.run.processes import table
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.peers import Peers


def check_devices(peers: Peers, cpu_is_chosen: bool, say: Callable[[str], None]) -> list[str]:
    """Says which devices each process has; InputError, on all of them, where one has not what was to be expected.

    Returns the host of each process.
    """
    me, found = peers.me, jax.local_devices()
    expected = me.gpus

    def check() -> None:
        num = 0 if found[0].platform == "cpu" else len(found)
        if expected is not None and num != len(expected) and not cpu_is_chosen:
            raise InputError(_other_gpus(me, len(expected), num))

    peers.agree("devices", check)
    if me.count == 1:
        return [me.host]
    card = {"host": me.host, "devices": len(found), "kind": found[0].device_kind}
    cards = peers.gather("devices", card)
    say(table.processes_table(cards))
    warning = table.scattered([card["host"] for card in cards])
    if warning:
        say(f"warning: {warning}")
    if len({card["devices"] for card in cards}) > 1:
        raise InputError(_unequal(cards))
    return [card["host"] for card in cards]


def axes_by_host(mesh: Mesh | AbstractMesh, hosts: Sequence[str]) -> str:
    """Which mesh axes connect devices of one host only, and which cross hosts, as one line. hosts: by process."""
    assert not isinstance(mesh, AbstractMesh)  # a run's mesh is made of devices
    host = np.vectorize(lambda device: hosts[device.process_index], otypes=[object])(mesh.devices)
    crossing = [axis for dim, axis in enumerate(mesh.axis_names) if (host != np.take(host, [0], axis=dim)).any()]
    inside = [f"{axis}={mesh.shape[axis]}" for axis in mesh.axis_names if axis not in crossing]
    across = [f"{axis}={mesh.shape[axis]}" for axis in crossing]
    return f"mesh axes inside a host: {', '.join(inside) or 'none'}; across hosts: {', '.join(across) or 'none'}"


def _other_gpus(process: ThisProcess, expected: int, found: int) -> str:
    source = process.sources.get("gpus", "the launcher")
    if found == 0:
        remedy = "is the driver running, and is jax installed with CUDA (pip install 'meshtrain[cuda13]')?"
        remedy += " JAX_PLATFORMS=cpu trains on the CPU."
    else:
        remedy = "CUDA_VISIBLE_DEVICES, or a local_device_ids setting of JAX, hides the others."
    return f"GPUs: {process} should have {expected} ({source}), but JAX found {found}: {remedy}"


def _unequal(cards: Sequence[Mapping[str, Any]]) -> str:
    counts = [card["devices"] for card in cards]
    usual = max(counts, key=counts.count)
    odd = [
        f"process {i} on {card['host']} has {card['devices']}"
        for i, card in enumerate(cards)
        if card["devices"] != usual
    ]
    return (
        f"devices: {counts.count(usual)} of {len(cards)} processes have {usual} devices each, but {'; '.join(odd[:4])}."
        " All must have the same number: ask for whole nodes, or for the same number of GPUs on each (--gpus-per-node)."
    )
