"""Starts several processes of the trainer on this machine: a rehearsal of many hosts, on the CPU.

    python -m meshtrain.launch --processes 2 --devices 4 -- --config configs/runs/quickstart.py --config.steps=3

--processes P   how many processes
--devices D     virtual CPU devices of each (1)
--port N        where they meet, on this machine (a free port)
--wait SECONDS  how long they wait for each other at the start (300)
--dry-run       print what would be started, and start nothing

What follows `--` goes to each trainer. Lines are printed behind the number of the process that said them. When one
process fails, all end, with its reason and its exit code. SIGTERM, SIGUSR1, SIGHUP and Ctrl-C are passed on to all.
"""

import shlex
import sys
from collections.abc import Sequence

from meshtrain.errors import InputError
from meshtrain.run.flags import NUMBER, SWITCH, exit_code, take
from meshtrain.run.processes import local
from meshtrain.run.processes.meeting import free_port

MOST = 1024  # processes, and devices of each
FLAGS = {"processes": NUMBER, "devices": NUMBER, "port": NUMBER, "wait": NUMBER, "dry_run": SWITCH, "help": SWITCH}


def main(argv: Sequence[str] | None = None) -> int:
    """Starts the processes and waits for them; returns the exit code."""
    return exit_code(launch, argv)


def launch(argv: Sequence[str]) -> int:
    """The door's work; InputError for what the user can mend."""
    own, trainer = _split(argv)
    flags, files, rest = take(own, FLAGS)
    if "help" in flags or "-h" in rest:
        print(__doc__)
        return 0
    if files or rest:
        raise InputError(f"{[*files, *rest][0]}: not an argument of launch; write what is for the trainer behind `--`.")
    if "processes" not in flags or not trainer:
        raise InputError(
            "launch needs --processes and, behind `--`, what each trainer gets, for example"
            " `--processes 2 --devices 4 -- --config configs/runs/quickstart.py`."
        )
    if any(argument.startswith("--config.cpu_devices") for argument in trainer):
        raise InputError("--config.cpu_devices: launch sets it, to --processes times --devices; write --devices.")
    for flag in ("processes", "devices"):
        if flags.get(flag, 1) > MOST:
            raise InputError(f"--{flag} {flags[flag]}: more than {MOST} are no rehearsal on one machine.")
    waiting = ["--wait", str(flags["wait"])] if "wait" in flags else []
    port = flags.get("port") or free_port()
    commands = local.commands(flags["processes"], flags.get("devices", 1), port, [*trainer, *waiting])
    if "dry_run" in flags:
        for index, command in enumerate(commands):
            print(f"[{index}] {shlex.join(command)}")
        return 0
    return local.LocalProcesses(commands).run()


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is before and behind the first `--`."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


if __name__ == "__main__":
    sys.exit(main())
