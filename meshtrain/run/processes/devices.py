"""The devices that JAX found, against what the launcher gave each process and against each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from meshtrain.errors import InputError
from meshtrain.run.processes import table
from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.processes.peers import Peers


def check_devices(peers: Peers, cpu_is_chosen: bool, say: Callable[[str], None]) -> None:
    """Says which devices each process has; InputError, on all of them, where one has not what was to be expected."""
    me, found = peers.me, jax.local_devices()
    expected = me.gpus

    def check() -> None:
        num = 0 if found[0].platform == "cpu" else len(found)
        if expected is not None and num != len(expected) and not cpu_is_chosen:
            raise InputError(_other_gpus(me, len(expected), num))

    peers.agree("devices", check)
    if me.count == 1:
        return
    card = {"host": me.host, "devices": len(found), "kind": found[0].device_kind}
    cards = peers.gather("devices", card)
    say(table.processes_table(cards))
    warning = table.scattered([card["host"] for card in cards])
    if warning:
        say(f"warning: {warning}")
    if len({card["devices"] for card in cards}) > 1:
        raise InputError(_unequal(cards))


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
