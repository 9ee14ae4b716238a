"""What each launcher says about a process, from the environment that it makes: Open MPI, Slurm, Kubernetes, PMI.

Each function returns the facts that it finds, by name, or None where the process was not started by it. What a
launcher does not say is left out; flags and the variables MESHTRAIN_... add or replace single facts.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from meshtrain.errors import InputError
from meshtrain.run.digits import read_digits, shortened
from meshtrain.run.processes.fact import Fact
from meshtrain.run.processes.nodes import expand_nodes, tasks_of_node

Facts = dict[str, Fact[Any]]
PORTS = range(61440, 65536)  # above the ports that systems give to outgoing connections
KUBERNETES_PORT = 8476
NO_SRUN = 0xFFFFFFF0  # from here on Slurm numbers what is no srun: the batch script, the shell that salloc opens


def open_mpi(environ: Mapping[str, str]) -> Facts | None:
    """mpirun. The coordinator is where mpirun runs, which is the first host unless the host list says otherwise."""
    if "OMPI_COMM_WORLD_SIZE" not in environ:
        return None
    facts = _read(
        environ,
        processes=("OMPI_COMM_WORLD_SIZE",),
        process=("OMPI_COMM_WORLD_RANK",),
        local_process=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_processes=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    )
    # `JOB.0;tcp://10.0.0.1,10.1.0.1:34911;...` of version 4; version 5 says nothing, and --coordinator must.
    found = re.match(r"(\d+)\.\d+;tcp://([\d.]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if found:
        port = _port(read_digits(found[1]) or 0)
        facts["coordinator"] = Fact(f"{found[2]}:{port}", "OMPI_MCA_orte_hnp_uri (where mpirun runs)")
    return facts


def slurm(environ: Mapping[str, str]) -> Facts | None:
    """srun. Process 0 is on the first node of the step; InputError in a job of several tasks without srun."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    step = read_digits(environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", "")))
    if step is None or step >= NO_SRUN or "SLURM_PROCID" not in environ:
        tasks = environ.get("SLURM_NTASKS", environ.get("SLURM_NPROCS", "1"))
        if tasks != "1":
            raise InputError(
                f"SLURM_NTASKS={tasks}: this is a Slurm job of {tasks} tasks, but this process was not started by srun,"
                " so it would train alone. Write `srun python -m meshtrain.train ...`, or add --processes 1."
            )
        return None
    facts = _read(
        environ,
        processes=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        process=("SLURM_PROCID",),
        local_process=("SLURM_LOCALID",),
        restarts=("SLURM_RESTART_COUNT",),
    )
    nodes = _first(environ, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if nodes:
        restarts = int(facts["restarts"].value) if "restarts" in facts else 0
        number = _read(environ, job=("SLURM_JOB_ID",))["job"].value + 97 * step + 1009 * restarts
        first = next(expand_nodes(nodes.value))
        facts["coordinator"] = Fact(f"{first}:{_port(number)}", f"first of {nodes.source}; port from SLURM_JOB_ID")
    if environ.get("SLURMD_NODENAME"):
        facts["host"] = Fact(environ["SLURMD_NODENAME"], "SLURMD_NODENAME")
    counts = _first(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    node = read_digits(environ.get("SLURM_NODEID", ""))
    if counts and node is not None and (here := tasks_of_node(counts.value, node)) is not None:
        facts["local_processes"] = Fact(here, counts.source)
    return facts


def kubernetes(environ: Mapping[str, str]) -> Facts | None:
    """An indexed Job, alone or in a JobSet: a pod is a process. The number of processes is not in a pod's environment.

    In a JobSet, whose name the manifest puts into JOBSET_NAME, the first pod's name follows from this pod's own.
    """
    if "JOB_COMPLETION_INDEX" not in environ:
        return None
    facts = _read(environ, process=("JOB_COMPLETION_INDEX",), restarts=("JOBSET_RESTART_ATTEMPT",))
    jobset, pod = environ.get("JOBSET_NAME"), environ.get("HOSTNAME", "")
    found = re.fullmatch(r".+-(\d+)-\d+", pod)
    if jobset and found and found[1].strip("0"):
        raise InputError(
            f"HOSTNAME={pod}: this pod belongs to job {found[1]} of its JobSet, and pods are counted within one job."
            " Write `replicas: 1` with as many completions as there are nodes."
        )
    index = f"-{environ['JOB_COMPLETION_INDEX']}"
    if jobset and pod.endswith(index):
        first = f"{pod.removesuffix(index)}-0.{jobset}:{KUBERNETES_PORT}"
        facts["coordinator"] = Fact(first, "HOSTNAME with index 0, JOBSET_NAME")
    facts |= {"local_process": Fact(0, "a pod is a process"), "local_processes": Fact(1, "a pod is a process")}
    return facts


def pmi(environ: Mapping[str, str]) -> Facts | None:
    """MPICH's and Intel MPI's mpiexec, and what else speaks PMI or PMIx; it does not say where process 0 is."""
    facts = _read(
        environ,
        processes=("PMI_SIZE",),
        process=("PMI_RANK", "PMIX_RANK"),
        local_process=("MPI_LOCALRANKID",),
        local_processes=("MPI_LOCALNRANKS",),
    )
    return facts if "process" in facts else None


# The launcher nearest to the process first: mpirun inside a Slurm job is mpirun.
LAUNCHERS: Mapping[str, Callable[[Mapping[str, str]], Facts | None]] = {
    "Open MPI": open_mpi,
    "Slurm": slurm,
    "Kubernetes": kubernetes,
    "PMI": pmi,
}


def _first(environ: Mapping[str, str], *names: str) -> Fact[str] | None:
    return next((Fact(environ[name], f"{name}={environ[name]}") for name in names if environ.get(name)), None)


def _read(environ: Mapping[str, str], **wanted: tuple[str, ...]) -> Facts:
    """Whole numbers, each from the first of its variables that is set."""
    facts: Facts = {}
    for fact, names in wanted.items():
        for name in names:
            if text := environ.get(name, ""):
                number = read_digits(text)
                if number is None:
                    raise InputError(f"{name}={shortened(text)}: it must be a whole number.")
                facts[fact] = Fact(number, name)
                break
    return facts


def _port(number: int) -> int:
    return PORTS[number % len(PORTS)]
