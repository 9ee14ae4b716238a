"""`recognise`: from a launcher's environment to `ThisProcess`. A pure function: a dry run shows what a start would do.

What is nearer wins, fact by fact: flags, then MESHTRAIN_COORDINATOR, MESHTRAIN_PROCESSES and MESHTRAIN_PROCESS, then
the launcher. But a launcher's count or number of processes is replaced only where all is said by hand: its other tasks
would still go by its own. Without any of them there is one process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshtrain.errors import InputError
from meshtrain.run.digits import read_digits, shortened
from meshtrain.run.processes.fact import Fact
from meshtrain.run.processes.gpus import own_gpus
from meshtrain.run.processes.launchers import LAUNCHERS, Facts

VARIABLES = {
    "MESHTRAIN_COORDINATOR": "coordinator",
    "MESHTRAIN_PROCESSES": "processes",
    "MESHTRAIN_PROCESS": "process",
    "MESHTRAIN_WAIT": "wait",
}
NUMBERS = ("processes", "process", "wait")
MOST = 1_000_000  # processes, and seconds of a wait: clocks and sockets take no more than some 1e9
WAIT = 300  # seconds that a process waits for the others at the start


@dataclass(frozen=True)
class Flags:
    """--coordinator HOST:PORT, --processes, --process (from 0) and --wait (seconds); None: not given."""

    coordinator: str | None = None
    processes: str | None = None
    process: str | None = None
    wait: str | None = None


@dataclass(frozen=True)
class ThisProcess:
    """Process `index` of `count`, on `host`, and where they all meet.

    local_index of local_count: among the processes of this host. gpus: which of the visible GPUs are its own; None
    where nothing says so. restarts: how often the launcher has started this job again. wait: seconds for a start or an
    answer.
    """

    index: int = 0
    count: int = 1
    coordinator: str | None = None
    host: str = "localhost"
    launcher: str = "one process"
    local_index: int = 0
    local_count: int = 1
    gpus: tuple[int, ...] | None = None
    restarts: int = 0
    wait: float = WAIT
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether this is process 0, which prints and writes."""
        return self.index == 0

    @property
    def shares_host(self) -> bool:
        """Whether its host's GPUs are dealt out by number and not by the launcher."""
        return self.gpus is not None and "; shared by" in self.sources.get("gpus", "")

    def __str__(self) -> str:
        return f"process {self.index} of {self.count} on {self.host}"


def recognise(
    environ: Mapping[str, str], hostname: str, flags: Flags = Flags(), gpus_there: int | None = None
) -> ThisProcess:
    """What the environment says. gpus_there: GPUs of this machine, or None where that is not known.

    InputError where facts are missing or contradict each other; it names the variables and flags that would mend it.
    """
    given = {VARIABLES[name]: Fact(environ[name], name) for name in VARIABLES if environ.get(name)}
    given |= {
        each.name: Fact(value, f"--{each.name}")
        for each in fields(flags)
        if (value := getattr(flags, each.name)) is not None
    }
    facts: Facts = {name: _number(name, fact) if name in NUMBERS else fact for name, fact in given.items()}
    launcher, launched = _launched(environ, facts)
    _refuse_contradictions(launcher, launched, facts)
    facts = launched | facts
    count, index = _counted(facts, launcher)
    if count > 1 and "coordinator" not in facts:
        raise InputError(_missing("coordinator", launcher))
    local_count = facts["local_processes"].value if "local_processes" in facts else 1
    local_index = facts["local_process"].value if "local_process" in facts else 0
    if "local_processes" in facts and local_index >= local_count:
        raise InputError(
            f"{facts['local_process'].source}={local_index} contradicts {facts['local_processes'].source}: on this host"
            f" processes are counted from 0 to {local_count - 1}. Leave both to {launcher}, or say all by hand:"
            " --coordinator, --processes and --process."
        )
    gpus = own_gpus(environ, local_index, local_count, gpus_there)
    sources = {name: fact.source for name, fact in facts.items()} | ({"gpus": gpus.source} if gpus else {})
    return ThisProcess(
        index=index,
        count=count,
        coordinator=_address(facts["coordinator"]) if count > 1 else None,
        host=facts["host"].value if "host" in facts else hostname,
        launcher=launcher,
        local_index=local_index,
        local_count=local_count,
        gpus=gpus.value if gpus else None,
        restarts=facts["restarts"].value if "restarts" in facts else 0,
        wait=facts["wait"].value if "wait" in facts else WAIT,
        sources=sources,
    )


def _launched(environ: Mapping[str, str], given: Facts) -> tuple[str, Facts]:
    """The launcher and its facts. With one process asked for, or all said by hand, no launcher is asked."""
    if "processes" in given and given["processes"].value == 1:
        return "one process", {}
    if {"coordinator", "processes", "process"} <= given.keys():
        return "by hand", {}
    for name, read in LAUNCHERS.items():
        facts = read(environ)
        if facts is not None:
            return name, facts
    return ("by hand" if given.keys() - {"wait"} else "one process"), {}


def _refuse_contradictions(launcher: str, launched: Facts, given: Facts) -> None:
    """What is said by hand, against what the launcher says of the same."""
    for name in ("processes", "process"):
        if name in launched and name in given and launched[name].value != given[name].value:
            said, told = given[name], launched[name]
            raise InputError(
                f"{said.source}={said.value} contradicts {launcher}, which says {told.value} ({told.source}). Leave it"
                " out, or say all by hand: --coordinator, --processes and --process. --processes 1 trains alone."
            )


def _counted(facts: Facts, launcher: str) -> tuple[int, int]:
    """(number of processes, this one's); both must be known, and the second below the first."""
    if launcher == "one process":
        index = facts["process"].value if "process" in facts else 0
        if index:
            raise InputError(f"{facts['process'].source}={index}: there is one process, which has the number 0.")
        return 1, 0
    for name in ("processes", "process"):
        if name not in facts:
            raise InputError(_missing(name, launcher))
    count, index = facts["processes"].value, facts["process"].value
    if index >= count:
        raise InputError(
            f"{facts['process'].source}={index} must be below {facts['processes'].source}={count}: processes are"
            f" counted from 0 to {count - 1}."
        )
    return count, index


def _missing(name: str, launcher: str) -> str:
    """What to add where a fact is not known."""
    what = {
        "coordinator": (
            "where the processes meet",
            "--coordinator HOST:PORT, the first process's host and a free port",
        ),
        "processes": ("how many processes there are", "--processes N"),
        "process": ("which of the processes this one is", "--process I, counted from 0"),
    }[name]
    return (
        f"--{name}: it is not known {what[0]} ({launcher} does not say it). Add {what[1]}; the same in the environment"
        f" is MESHTRAIN_{name.upper()}."
    )


def _number(name: str, fact: Fact[Any]) -> Fact[int]:
    text, smallest = str(fact.value), int(name != "process")
    number = read_digits(text)
    if number is None or not smallest <= number <= MOST:
        raise InputError(f"{fact.source}={shortened(text)}: it must be a whole number from {smallest} to {MOST}.")
    return Fact(number, fact.source)


def _address(fact: Fact[str]) -> str:
    host, _, port = fact.value.rpartition(":")
    bare = ":" in host and not (host.startswith("[") and host.endswith("]"))  # IPv6 without its brackets
    if not host or bare or not 0 < (read_digits(port) or 0) < 65536:
        example = "[fd00::1]" if bare else fact.value.split(":")[0] or "node1"
        raise InputError(
            f"{fact.source}={shortened(fact.value)}: it must be HOST:PORT with a port from 1 to 65535, for example"
            f" {example}:8476."
        )
    return fact.value
