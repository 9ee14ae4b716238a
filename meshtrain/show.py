"""Shows what a layout does to a run, for any number of devices, without touching one.

    python -m meshtrain.show --config configs/runs/llama3_405b.py --devices 16384
    python -m meshtrain.show --config FILE --layout configs/layouts/zero2.py --diff configs/layouts/zero3.py

--config FILE, --layout FILE and their dotted overrides as in the trainer.
--devices N            how many devices (default: what the mesh takes, else the run's cpu_devices, else 8)
--diff FILE            what changes from the run's layout (or --layout) to this one
--array PATH           the picture of this array (such as params/layers/mlp/up) instead of the two largest
--devices-per-node N   how many neighbours share the fast links: warns of tensor traffic that leaves them
--cluster FILE         the same, as a cluster's file says (configs/clusters/)
--strict               warnings are errors
--json                 the same for programs

Exit codes: 0 done, 2 the layout or the input is wrong.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from meshtrain.errors import InputError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, exit_code, take_alone

FLAGS = dict(devices=NUMBER, diff=TEXT, array=TEXT, devices_per_node=NUMBER, cluster=TEXT, strict=SWITCH, json=SWITCH)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit code: 2 where the layout has errors (with --strict also for warnings)."""
    return exit_code(show, argv)


def show(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    flags, arguments = take_alone(argv, FLAGS)
    if arguments.help:
        print(__doc__)
        return 0
    if "array" in flags and ("json" in flags or "diff" in flags):
        raise InputError("--array: a picture is of one layout, in text; leave --json and --diff out.")
    from meshtrain.layout.finding import ERROR, WARNING
    from meshtrain.run.cluster_file import read_cluster
    from meshtrain.run.config import Request, load
    from meshtrain.run.show import Report, as_json, default_devices, difference_text, make_report, report_text

    request = load(arguments)
    num_devices = flags.get("devices") or default_devices(request)
    fast = read_cluster(flags["cluster"]).fast_gpus if "cluster" in flags else None
    fast = flags.get("devices_per_node", fast)

    def report(asked: Request) -> Report:
        return make_report(asked.config, asked.layout, asked.layout_name, num_devices, fast)

    shown = [report(request)]
    if "diff" in flags:
        shown.append(report(load(replace(arguments, layout=flags["diff"]), "--diff")))
    if flags.get("json"):
        found = [as_json(one) for one in shown]
        print(json.dumps(found[0] if len(found) == 1 else {"old": found[0], "new": found[1]}, indent=1))
    elif "diff" in flags:
        print(difference_text(*shown))
    else:
        print(report_text(shown[0], [flags["array"]] if "array" in flags else []))
    grave = (ERROR, WARNING) if flags.get("strict") else (ERROR,)
    return InputError.exit_code if any(one.count(severity) for one in shown for severity in grave) else 0


if __name__ == "__main__":
    sys.exit(main())
