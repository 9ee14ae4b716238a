"""Says what a run will cost on a cluster, before any device is asked for: memory, time, traffic, money.

    python -m meshtrain.plan --config RUN --cluster FILE --gpus N --layout FILE     what this layout costs

--config FILE, --layout FILE and their dotted overrides as in the trainer.
--cluster FILE   the machine: configs/clusters/*.py
--gpus N         how many of its GPUs
--json           the same for programs

Exit codes: 0 done, 2 the input is wrong or the layout does not fit.
"""

import json
import sys
from collections.abc import Sequence

from meshtrain.errors import InputError, MeshtrainError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, take

FLAGS = dict(cluster=TEXT, gpus=NUMBER, json=SWITCH)


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
    from meshtrain.run.plan import as_json, make_plan_report, plan_text

    cluster = read_cluster(flags["cluster"])
    request = load(arguments)
    report = make_plan_report(request.config, request.layout, request.layout_name, cluster, flags["gpus"])
    print(json.dumps(as_json(report), indent=1) if flags.get("json") else plan_text(report))
    return 0 if report.memory.peak <= report.limit else InputError.exit_code


if __name__ == "__main__":
    sys.exit(main())
