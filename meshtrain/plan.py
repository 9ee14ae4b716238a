"""Says what a run will cost on a cluster, before any device is asked for: memory, time, traffic, money.

    python -m meshtrain.plan --config RUN --cluster FILE --gpus N --layout FILE     what this layout costs
    python -m meshtrain.plan --config RUN --cluster FILE --gpus N                   which layout is best, and why
    python -m meshtrain.plan --config RUN --cluster FILE --gpus N --serving         how vLLM should serve the model

--config FILE, --layout FILE and their dotted overrides as in the trainer.
--cluster FILE   the machine: configs/clusters/*.py
--gpus N         how many of its GPUs
--write FILE     the layout that was found, as a layout file
--price TEXT     of a GPU and hour, where the cluster's file has none or another: "2.50 USD per GPU-hour"
--html FILE      the same as a page to look at
--json           the same for programs

Exit codes: 0 done, 2 the input is wrong or the layout does not fit.
"""

import json
import sys
from collections.abc import Sequence

from meshtrain.errors import InputError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, exit_code, take_alone

REQUIRED = dict(cluster="configs/clusters/h100_roce.py", gpus="8")
FLAGS = dict(cluster=TEXT, gpus=NUMBER, serving=SWITCH, write=TEXT, price=TEXT, html=TEXT, json=SWITCH)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the plan; returns the exit code."""
    return exit_code(plan, argv)


def plan(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    flags, arguments = take_alone(argv, FLAGS, REQUIRED)
    if arguments.help:
        print(__doc__)
        return 0
    from meshtrain.run.cluster_file import read_cluster
    from meshtrain.run.config import load
    from meshtrain.run.page import check_target, write_page
    from meshtrain.run.plan import answer

    cluster, request = read_cluster(flags["cluster"], price=flags.get("price")), load(arguments)
    named, serving = arguments.layout is not None or bool(arguments.overrides["layout"]), flags.get("serving", False)
    if named and serving:
        raise InputError("--serving: vLLM cuts a model in its own way, which no layout says; leave --layout out.")
    searching = not named and not serving
    if "write" in flags and not searching:
        raise InputError("--write: it writes the layout that a search found; leave --layout and --serving out.")
    if "html" in flags:
        check_target(flags["html"])
    found = answer(request, cluster, flags["gpus"], searching, serving)
    if "write" in flags:
        found.write(flags["write"])
    if "html" in flags:
        write_page(flags["html"], found.page())
    print(json.dumps(found.json(), indent=1) if flags.get("json") else found.text())
    return 0 if found.fits else InputError.exit_code


if __name__ == "__main__":
    sys.exit(main())
