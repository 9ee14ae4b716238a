"""Compiles a run's real training step for a cluster, on a machine without a GPU, and tells what the compiler did.

    python -m meshtrain.audit --config RUN --layout FILE --cluster FILE --gpus N

--config FILE, --layout FILE and their dotted overrides as in the trainer.
--cluster FILE   the machine: configs/clusters/*.py
--gpus N         how many of its GPUs
--budget FILE    limits of memory and of what is sent; above one of them the exit code is 8
--backend cpu    compile for virtual CPU devices instead: no CUDA libraries needed, and less can be told
--html FILE      the same, and the plan, as a page to look at
--json           the same for programs

Exit codes: 0 done, 2 the input is wrong, 8 a budget is exceeded.
"""

import json
import sys
from collections.abc import Sequence

from meshtrain.audit.budget import BudgetError
from meshtrain.errors import InputError
from meshtrain.run.compiler import compile_without_gpus
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, exit_code, take_alone

REQUIRED = dict(cluster="configs/clusters/h100_roce.py", gpus="8")
MOST_CPU_DEVICES = 2048
FLAGS = dict(cluster=TEXT, gpus=NUMBER, budget=TEXT, backend=TEXT, html=TEXT, json=SWITCH)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the audit; returns the exit code."""
    return exit_code(audit, argv)


def audit(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    flags, arguments = take_alone(argv, FLAGS, REQUIRED)
    if arguments.help:
        print(__doc__)
        return 0
    backend = flags.get("backend", "gpu")
    if backend not in ("gpu", "cpu"):
        raise InputError(f"--backend: {backend!r} is not one of gpu, cpu.")
    if backend == "cpu" and flags["gpus"] > MOST_CPU_DEVICES:
        raise InputError(f"--gpus: {flags['gpus']} are more virtual CPU devices than work; {MOST_CPU_DEVICES:,} would.")
    compile_without_gpus(flags["gpus"] if backend == "cpu" else 1)
    from meshtrain.layout import Layout
    from meshtrain.run.audit import as_json, audit_text, make_audit_report
    from meshtrain.run.audit.budget_file import read_budget
    from meshtrain.run.cluster_file import read_cluster
    from meshtrain.run.config import load
    from meshtrain.run.page import check_target, page_data, write_page
    from meshtrain.run.plan import make_plan_report

    if "html" in flags:
        check_target(flags["html"])
    budget = read_budget(flags["budget"]) if "budget" in flags else None
    cluster, request = read_cluster(flags["cluster"]), load(arguments)
    if budget:
        budget = budget.on_mesh(list(Layout.parse(request.layout, request.layout_name).mesh.sizes))
    asked = (request.config, request.layout, request.layout_name, cluster, flags["gpus"])
    report = make_audit_report(*asked, backend)
    if "html" in flags:
        write_page(flags["html"], page_data(request.config, make_plan_report(*asked), audit=report))
    exceeded = budget.exceeded(report.peak, report.found, report.ledger) if budget else []
    if flags.get("json"):
        print(json.dumps(as_json(report) | ({"exceeded": exceeded} if budget else {}), indent=1))
    else:
        print(audit_text(report) + ("\n\nThe budget is kept." if budget and not exceeded else ""))
    if exceeded:
        by = ", by a program for CPUs, which cannot tell a GPU's bytes" if backend == "cpu" else ""
        raise BudgetError("\n".join([f"the budget is exceeded{by}:", *(f"  {line}" for line in exceeded)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
