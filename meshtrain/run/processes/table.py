"""What the start found, as text: this process's facts with their sources, and all processes with their devices."""

from collections.abc import Mapping, Sequence
from typing import Any

from meshtrain.run.processes.environment import ThisProcess
from meshtrain.run.terminal import aligned


def describe(me: ThisProcess, num_devices: int | None = None) -> str:
    """The facts about one process, one a line, each with where it came from. num_devices: local ones, if known."""
    sources = me.sources

    def where(*names: str) -> str:
        return ", ".join(dict.fromkeys(sources[name] for name in names if name in sources)) or "default"

    rows = [
        ("processes", str(me.count), where("processes")),
        ("process", str(me.index), where("process")),
        ("coordinator", me.coordinator or "none needed", where("coordinator") if me.coordinator else "one process"),
        ("host", me.host, where("host") if "host" in sources else "the machine's name"),
    ]
    if "local_process" in sources or "local_processes" in sources:
        text = f"process {me.local_index} of {me.local_count}"
        rows.append(("on this host", text, where("local_process", "local_processes")))
    if me.gpus is not None:
        listed = ",".join(map(str, me.gpus))
        rows.append(("local GPUs", f"{len(me.gpus)}: {listed}" if me.gpus else "0", where("gpus")))
    if num_devices is not None:
        rows.append(("local devices", str(num_devices), "config.cpu_devices or the mesh, over all processes"))
    if me.restarts:
        rows.append(("restarts", str(me.restarts), where("restarts")))
    return f"started by: {me.launcher}\n" + "\n".join(aligned([("what", "value", "from"), *rows], right=False))


def processes_table(cards: Sequence[Mapping[str, Any]]) -> str:
    """One line for each run of processes on a host: their numbers, the host, and the devices of each."""
    rows = [("process", "host", "local devices")]
    first = 0
    for index in range(1, len(cards) + 1):
        end = index == len(cards)
        if end or any(cards[index][key] != cards[first][key] for key in ("host", "devices")):
            numbers = str(first) if first == index - 1 else f"{first}-{index - 1}"
            each = " each" if index - 1 > first else ""
            rows.append((numbers, str(cards[first]["host"]), f"{cards[first]['devices']} {cards[first]['kind']}{each}"))
            first = index
    return "\n".join(aligned(rows, right=False))


def scattered(hosts: Sequence[str]) -> str | None:
    """A warning where the processes of a host are not numbered one after the other: fast axes would cross hosts."""
    seen: set[str] = set()
    for index, host in enumerate(hosts):
        if host in seen and hosts[index - 1] != host:
            return (
                f"the processes of {host} are not numbered one after the other, so mesh axes that should stay inside a"
                " host cross hosts; Slurm's --distribution=block, or mpirun's --map-by slot, numbers them host by host."
            )
        seen.add(host)
    return None
