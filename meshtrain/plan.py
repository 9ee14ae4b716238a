"""Says what a run will cost on a cluster, before any device is asked for: memory, time, traffic, money.

    python -m meshtrain.plan --config RUN --cluster FILE --gpus N --layout FILE     what this layout costs
    python -m meshtrain.plan --config RUN --cluster FILE --gpus N                   which layout is best, and why
    python -m meshtrain.plan --config RUN --cluster FILE --gpus N --serving         how vLLM should serve the model

--config FILE, --layout FILE and their dotted overrides as in the trainer.
--cluster FILE   the machine: configs/clusters/*.py
--gpus N         how many of its GPUs
--write FILE     the layout that was found, as a layout file
--json           the same for programs

Exit codes: 0 done, 2 the input is wrong or the layout does not fit.
"""

import json
import sys
from collections.abc import Sequence

from meshtrain.errors import InputError, MeshtrainError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, take

FLAGS = dict(cluster=TEXT, gpus=NUMBER, serving=SWITCH, write=TEXT, json=SWITCH)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the plan; returns the exit code."""
    try:
        return plan(sys.argv[1:] if argv is None else argv)
    except MeshtrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        return 0


def plan(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    from meshtrain.run.arguments import parse

    flags, files, rest = take(argv, FLAGS)
    if files:
        raise InputError(f"{files[0]}: not an argument; did you mean --layout {files[0]}?")
    arguments = parse(rest)
    if arguments.help:
        print(__doc__)
        return 0
    for name, example in (("cluster", "configs/clusters/h100_roce.py"), ("gpus", "8")):
        if name not in flags:
            raise InputError(f"--{name}: missing; for example --{name} {example}.")
    from meshtrain.run.cluster_file import read_cluster
    from meshtrain.run.config import load
    from meshtrain.run.plan import answer

    cluster, request = read_cluster(flags["cluster"]), load(arguments)
    searching = arguments.layout is None and not arguments.overrides["layout"] and not flags.get("serving")
    if "write" in flags and not searching:
        raise InputError("--write: it writes the layout that a search found; leave --layout and --serving out.")
    found = answer(request, cluster, flags["gpus"], searching, flags.get("serving", False))
    if "write" in flags:
        found.write(flags["write"])
    print(json.dumps(found.json(), indent=1) if flags.get("json") else found.text())
    return 0 if found.fits else InputError.exit_code


if __name__ == "__main__":
    sys.exit(main())
