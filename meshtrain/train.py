"""Trains a model.

    python -m meshtrain.train --config configs/runs/quickstart.py
    python -m meshtrain.train --config FILE --layout configs/layouts/zero1.py --config.steps=50 --layout.mesh.data=4

--config FILE   the run: model, data, optimizer, precision, seed, batch: all that changes the numbers
--layout FILE   the layout: mesh, rules, accumulation, rematerialisation: nothing that changes the numbers
                (without it, the one that the run names)
--config.KEY=VALUE and --layout.KEY=VALUE change one value each, by its dotted key.

Slurm, Open MPI and Kubernetes say which process of how many this is; elsewhere, on each of them:
--coordinator HOST:PORT   where they meet: process 0's host and a free port
--processes N --process I   how many they are, and which one this is, from 0
--wait SECONDS   how long to wait for the others at the start (300)
--dry-run        print what was recognised, and from where, and start nothing
"""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

from meshtrain.errors import Exit, MeshtrainError
from meshtrain.run.signals import StopRequest, listen_no_more
from meshtrain.run.speech import fall_silent, open_mouth, say


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the trainer; returns the exit code. Problems that the user can act on are one message, without a trace."""
    open_mouth()
    with StopRequest() as stop:
        try:
            return run(sys.argv[1:] if argv is None else argv, stop)
        except MeshtrainError as error:
            say(f"error: {error}", error=True)
            return error.exit_code
        except Exception:
            traceback.print_exc()
            return Exit.FAULT
        except KeyboardInterrupt:
            say("stopped at once; the newest checkpoint is what a new start goes on from", error=True)
            return Exit.INTERRUPTED


def run(argv: Sequence[str], stop: StopRequest) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    from meshtrain.run.arguments import parse
    from meshtrain.run.distributed import PROCESS_FLAGS, dry_run, this_process
    from meshtrain.run.flags import SWITCH, take

    flags, files, rest = take(argv, PROCESS_FLAGS | {"dry_run": SWITCH})
    arguments = parse([*files, *rest])
    if arguments.help:
        say(help_text())
        return Exit.DONE
    from meshtrain.run import origin
    from meshtrain.run.config import load

    request = load(arguments)
    origin.check_weights(request.config.init)
    request = replace(request, process=this_process(request, flags))
    if "dry_run" in flags:
        say(dry_run(request))
        return Exit.DONE
    from meshtrain.run.loop import train

    return train(request, stop)


def help_text() -> str:
    """This door's docstring, the exit codes, and every key of a run with its type and default."""
    from meshtrain.run.config import RunConfig
    from meshtrain.run.schema import leaves

    rows = [f"  {key:<42} {kind:<22} {default}" for key, kind, default in leaves(RunConfig, "config")]
    codes = [f"  {code.value:<4} {code.meaning}" for code in Exit]
    parts = [f"{__doc__}\nExit codes:\n", *codes, "\nKeys of a run, with type and default:\n", *rows]
    return "\n".join(parts)


def leave(code: int) -> None:
    """Ends the process; at once where it gives up while a thread of it still compiles, or while others train on."""
    from meshtrain.run.background import Background
    from meshtrain.run.processes.peers import part

    listen_no_more()
    fall_silent()
    if (code and part()) or Background.running:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    leave(main())
