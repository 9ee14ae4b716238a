"""Case S1: what launchers put into the environment, and what is recognised there, as hand-made tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshtrain.errors import InputError
from meshtrain.run.processes import recognise
from meshtrain.run.processes.environment import Flags, ThisProcess
from meshtrain.run.processes.nodes import expand_nodes, tasks_of_node
from meshtrain.run.processes.table import describe, processes_table, scattered
from tests.run.runs import ROOT, write_run

ALL_8 = "0,1,2,3,4,5,6,7"


def slurm(
    nodes: str, tasks: int, task: int, node: int = 0, local: int = 0, per_node: str = "1", **more: str
) -> dict[str, str]:
    """The environment of a task that srun started."""
    names = list(expand_nodes(nodes))
    return {
        "SLURM_JOB_ID": "4242", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": nodes, "SLURM_JOB_NODELIST": nodes,
        "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NTASKS": str(tasks), "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node), "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURMD_NODENAME": names[node],
    } | more  # fmt: skip


PORT = 61440 + 4242 % 4096
OMPI = {
    "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "OMPI_MCA_orte_hnp_uri": "1576796160.0;tcp://10.0.0.1,10.1.0.1:42101;tcp6://[fd00::2]:57243",
}  # fmt: skip
MPI_PORT = 61440 + 1576796160 % 4096
POD = {
    "JOB_COMPLETION_INDEX": "3", "JOBSET_NAME": "llama", "HOSTNAME": "llama-workers-0-3",
    "JOBSET_RESTART_ATTEMPT": "2", "MESHTRAIN_PROCESSES": "4",
}  # fmt: skip

# environment -> (launcher, processes, process, coordinator, host, local index, local count, GPUs, restarts)
CASES = {
    "nothing": ({}, ("one process", 1, 0, None, "me", 0, 1, None, 0)),
    "one task with 8 GPUs on each of two nodes": (
        slurm("gpu[07-08]", 2, 1, node=1, per_node="1(x2)", CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="8"),
        ("Slurm", 2, 1, f"gpu07:{PORT}", "gpu08", 0, 1, (0, 1, 2, 3, 4, 5, 6, 7), 0),
    ),
    "8 tasks that each see all 8 GPUs": (
        slurm("n1", 8, 3, local=3, per_node="8", CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="8"),
        ("Slurm", 8, 3, f"n1:{PORT}", "n1", 3, 8, (3,), 0),
    ),
    "8 tasks that each see their own GPU": (
        slurm("n1", 8, 3, local=3, per_node="8", CUDA_VISIBLE_DEVICES="3", SLURM_GPUS_ON_NODE="8"),
        ("Slurm", 8, 3, f"n1:{PORT}", "n1", 3, 8, (0,), 0),
    ),
    "2 tasks that share 8 GPUs": (
        slurm("n1", 2, 1, local=1, per_node="2", CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="8"),
        ("Slurm", 2, 1, f"n1:{PORT}", "n1", 1, 2, (4, 5, 6, 7), 0),
    ),
    "2 tasks with 2 GPUs dealt out to each": (
        slurm("n1", 2, 1, local=1, per_node="2", CUDA_VISIBLE_DEVICES="2,3", SLURM_GPUS_ON_NODE="4"),
        ("Slurm", 2, 1, f"n1:{PORT}", "n1", 1, 2, (0, 1), 0),
    ),
    "a part of a node, with GPUs 2 and 3": (
        slurm("n5", 1, 0, CUDA_VISIBLE_DEVICES="2,3", SLURM_GPUS_ON_NODE="2"),
        ("Slurm", 1, 0, None, "n5", 0, 1, (0, 1), 0),
    ),
    "node ranges, an odd number of tasks on each": (
        slurm("rack[1-2]n[08-09],login", 11, 10, node=4, local=1, per_node="2,3(x2),1,2"),
        ("Slurm", 11, 10, f"rack1n08:{PORT}", "login", 1, 2, None, 0),
    ),
    "a step on some of the job's nodes": (
        slurm("n[3-4]", 2, 1, node=1, per_node="1(x2)", SLURM_JOB_NODELIST="n[1-4]", SLURM_NTASKS="4"),
        ("Slurm", 2, 1, f"n3:{PORT}", "n4", 0, 1, None, 0),
    ),
    "queued again, with another port than before": (
        slurm("n[1-2]", 2, 0, per_node="1(x2)", SLURM_RESTART_COUNT="2"),
        ("Slurm", 2, 0, f"n1:{PORT + 2 * 1009}", "n1", 0, 1, None, 2),
    ),
    "a batch script of one task without srun": (
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        ("one process", 1, 0, None, "me", 0, 1, None, 0),
    ),
    "mpirun": (OMPI, ("Open MPI", 16, 9, f"10.0.0.1:{MPI_PORT}", "me", 1, 8, None, 0)),
    "mpirun in a Slurm job": (
        slurm("n[1-2]", 2, 0, per_node="1(x2)") | OMPI,
        ("Open MPI", 16, 9, f"10.0.0.1:{MPI_PORT}", "me", 1, 8, None, 0),
    ),
    "a pod of a JobSet": (
        POD | {"CUDA_VISIBLE_DEVICES": ALL_8},
        ("Kubernetes", 4, 3, "llama-workers-0-0.llama:8476", "me", 0, 1, (0, 1, 2, 3, 4, 5, 6, 7), 2),
    ),
    "a pod of an indexed Job": (
        {"JOB_COMPLETION_INDEX": "0", "MESHTRAIN_PROCESSES": "2", "MESHTRAIN_COORDINATOR": "job-0.svc:8476"},
        ("Kubernetes", 2, 0, "job-0.svc:8476", "me", 0, 1, None, 0),
    ),
    "MIG parts, of which CUDA shows a process one": (
        slurm("n1", 7, 2, local=2, per_node="7", CUDA_VISIBLE_DEVICES="MIG-1f,MIG-2e", SLURM_GPUS_ON_NODE="7"),
        ("Slurm", 7, 2, f"n1:{PORT}", "n1", 2, 7, (0,), 0),
    ),
    "4 GPUs by name": (
        slurm("n1", 1, 0, CUDA_VISIBLE_DEVICES="GPU-1f,GPU-2e,GPU-3d,GPU-4c", SLURM_GPUS_ON_NODE="4"),
        ("Slurm", 1, 0, None, "n1", 0, 1, (0, 1, 2, 3), 0),
    ),
    "2 GPUs for each of 4 tasks, where Slurm counts on the node what one task sees": (
        slurm("n1", 4, 3, local=3, per_node="4", CUDA_VISIBLE_DEVICES="6,7", SLURM_GPUS_ON_NODE="2",
              SLURM_GPUS_PER_TASK="h100:2"),
        ("Slurm", 4, 3, f"n1:{PORT}", "n1", 3, 4, (0, 1), 0),
    ),
    "8 tasks of one GPU each, all of which see all": (
        slurm("n1", 8, 5, local=5, per_node="8", CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="8",
              SLURM_GPUS_PER_TASK="1"),
        ("Slurm", 8, 5, f"n1:{PORT}", "n1", 5, 8, (5,), 0),
    ),
    "GPUs that Slurm counts and no variable names": (
        slurm("n1", 1, 0, SLURM_GPUS_ON_NODE="2"), ("Slurm", 1, 0, None, "n1", 0, 1, (0, 1), 0),
    ),
    "the job's numbers of tasks, where the step has none": (
        {key: value for key, value in slurm("n[1-3]", 20, 17, node=2, local=1).items() if "STEP_TASKS" not in key}
        | {"SLURM_TASKS_PER_NODE": "8(x2),4"},
        ("Slurm", 20, 17, f"n1:{PORT}", "n3", 1, 4, None, 0),
    ),
    "two jobs of an array on one node, at two ports": (
        slurm("n1", 2, 0, per_node="2", SLURM_JOB_ID="4243", SLURM_ARRAY_JOB_ID="4242", SLURM_ARRAY_TASK_ID="1"),
        ("Slurm", 2, 0, f"n1:{PORT + 1}", "n1", 0, 2, None, 0),
    ),
    "two steps of a job at once, at two ports": (
        slurm("n1", 2, 0, per_node="2", SLURM_STEP_ID="1"),
        ("Slurm", 2, 0, f"n1:{PORT + 97}", "n1", 0, 2, None, 0),
    ),
    "srun that speaks PMIx": (
        slurm("n[1-2]", 2, 1, node=1, per_node="1(x2)", PMIX_RANK="1", PMIX_NAMESPACE="slurm.pmix.4242.0"),
        ("Slurm", 2, 1, f"n1:{PORT}", "n2", 0, 1, None, 0),
    ),
    "mpiexec of MPICH": (
        {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2",
         "MESHTRAIN_COORDINATOR": "[fd00::1]:8476"},
        ("PMI", 4, 3, "[fd00::1]:8476", "me", 1, 2, None, 0),
    ),
    "an MPI of one process": ({"PMI_SIZE": "1", "PMI_RANK": "0"}, ("PMI", 1, 0, None, "me", 0, 1, None, 0)),
    "a shell of salloc for one task": (
        slurm("n1", 1, 0, SLURM_STEP_ID="4294967290"), ("one process", 1, 0, None, "me", 0, 1, None, 0),
    ),
    "no GPU by Slurm's word": (
        slurm("n1", 1, 0, CUDA_VISIBLE_DEVICES="NoDevFiles"),
        ("Slurm", 1, 0, None, "n1", 0, 1, (), 0),
    ),
}  # fmt: skip


def facts(me: ThisProcess) -> tuple[object, ...]:
    return (
        me.launcher, me.count, me.index, me.coordinator, me.host, me.local_index, me.local_count, me.gpus, me.restarts
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_launchers_say_is_recognised(name: str) -> None:
    environ, expected = CASES[name]
    me = recognise(environ, "me")
    assert facts(me) == expected
    assert me.shares_host == ("share" in name or "see all" in name)
    for fact in ("processes", "process"):
        assert me.count == 1 or me.sources[fact] in {*environ, f"--{fact}"}


def test_every_fact_is_shown_with_where_it_came_from() -> None:
    environ, _ = CASES["queued again, with another port than before"]
    assert describe(recognise(environ | {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2"}, "me")) == (
        f"""\
started by: Slurm
  what          value           from
  processes     2               SLURM_STEP_NUM_TASKS
  process       0               SLURM_PROCID
  coordinator   n1:{PORT + 2 * 1009}        first of SLURM_STEP_NODELIST=n[1-2]; port from SLURM_JOB_ID
  host          n1              SLURMD_NODENAME
  on this host  process 0 of 1  SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE=1(x2)
  local GPUs    2: 0,1          CUDA_VISIBLE_DEVICES=0,1, SLURM_GPUS_ON_NODE=2
  restarts      2               SLURM_RESTART_COUNT"""
    )


def test_flags_replace_single_facts_and_variables_do_too() -> None:
    environ, _ = CASES["mpirun"]
    assert recognise(environ, "me", Flags(coordinator="head:1234")).coordinator == "head:1234"
    assert recognise(environ | {"MESHTRAIN_COORDINATOR": "head:1"}, "me").coordinator == "head:1"
    me = recognise(environ, "me", Flags(processes="1"))
    assert (me.count, me.index, me.launcher) == (1, 0, "one process")
    by_hand = Flags(coordinator="[::1]:1234", processes="3", process="2", wait="7")
    me = recognise(environ, "me", by_hand)
    assert (me.count, me.index, me.coordinator, me.launcher, me.wait) == (3, 2, "[::1]:1234", "by hand", 7)
    assert me.sources["process"] == "--process"


BAD = {
    "one task per node sees one of its GPUs": (
        slurm("n[1-2]", 2, 0, per_node="1(x2)", CUDA_VISIBLE_DEVICES="0", SLURM_GPUS_ON_NODE="8"), Flags(),
        ["8 GPUs", "sees 1 of them", "CUDA_VISIBLE_DEVICES", "--gpus-per-task=8", "--ntasks-per-node=8"],
    ),
    "two tasks leave six GPUs idle": (
        slurm("n1", 2, 0, per_node="2", CUDA_VISIBLE_DEVICES="0", SLURM_GPUS_ON_NODE="8"), Flags(),
        ["2 processes", "see 1 GPU each", "6 of its 8 GPUs stay idle"],
    ),
    "three tasks for eight GPUs": (
        slurm("n1", 3, 0, per_node="3", CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="8"), Flags(),
        ["8 visible GPUs", "3 processes", "8 tasks on each node, or one, would work"],
    ),
    "one task per node sees one of its GPUs, where Slurm counts what it sees": (
        slurm("n[1-2]", 2, 0, per_node="1(x2)", CUDA_VISIBLE_DEVICES="0", SLURM_GPUS_ON_NODE="1",
              SLURM_GPUS_PER_TASK="1", SLURM_GPUS_PER_NODE="h100:8"), Flags(),
        ["8 GPUs", "sees 1 of them", "--gpus-per-task=8"],
    ),
    "one process for seven MIG parts": (
        slurm("n1", 1, 0, CUDA_VISIBLE_DEVICES="MIG-1,MIG-2,MIG-3,MIG-4,MIG-5,MIG-6,MIG-7", SLURM_GPUS_ON_NODE="7"),
        Flags(), ["one MIG part only", "MIG-1,MIG-2", "--ntasks-per-node=7 --gpus-per-task=1"],
    ),
    "all GPUs hidden from a job that has them": (
        slurm("n1", 1, 0, CUDA_VISIBLE_DEVICES="", SLURM_GPUS_ON_NODE="8"), Flags(),
        ["8 GPUs", "sees 0 of them", "CUDA_VISIBLE_DEVICES= hides the others"],
    ),
    "more GPUs visible than the job has": (
        slurm("n1", 1, 0, CUDA_VISIBLE_DEVICES=ALL_8, SLURM_GPUS_ON_NODE="2"), Flags(),
        [f"CUDA_VISIBLE_DEVICES={ALL_8} shows 8", "SLURM_GPUS_ON_NODE=2", "--gpus-per-node=8"],
    ),
    "a GPU named twice": ({"CUDA_VISIBLE_DEVICES": "0,1,0"}, Flags(), ["DEVICES=0,1,0", "0 is named twice"]),
    "a number of processes that is not Slurm's": (
        slurm("n[1-2]", 2, 0, per_node="1(x2)"), Flags(processes="4"),
        ["--processes=4 contradicts Slurm, which says 2 (SLURM_STEP_NUM_TASKS)", "--processes 1"],
    ),
    "a place that is not mpirun's": (
        OMPI | {"MESHTRAIN_PROCESS": "3"}, Flags(),
        ["MESHTRAIN_PROCESS=3 contradicts Open MPI, which says 9 (OMPI_COMM_WORLD_RANK)"],
    ),
    "a pod of the second job of a JobSet": (
        POD | {"HOSTNAME": "llama-workers-1-3"}, Flags(), ["HOSTNAME=llama-workers-1-3", "replicas: 1"],
    ),
    "PMIx without a number of processes": ({"PMIX_RANK": "0"}, Flags(), ["--processes", "PMI does not say it"]),
    "mpiexec without a meeting place": ({"PMI_SIZE": "2", "PMI_RANK": "0"}, Flags(), ["--coordinator HOST:PORT"]),
    "an IPv6 address without brackets": (
        {}, Flags(coordinator="fd00::1:8476", processes="2", process="0"), ["fd00::1:8476", "[fd00::1]:8476"],
    ),
    "srun forgotten in the shell of salloc": (
        slurm("n1", 1, 0, SLURM_STEP_ID="4294967290", SLURM_NTASKS="2"), Flags(), ["SLURM_NTASKS=2", "srun python"],
    ),
    "srun forgotten": (
        {"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, Flags(),
        ["SLURM_NTASKS=2", "srun python -m meshtrain.train", "--processes 1"],
    ),
    "number of pods unknown": (
        {"JOB_COMPLETION_INDEX": "0"}, Flags(), ["--processes", "Kubernetes", "MESHTRAIN_PROCESSES"],
    ),
    "no coordinator": ({}, Flags(processes="2", process="0"), ["--coordinator HOST:PORT", "MESHTRAIN_COORDINATOR"]),
    "no number": ({}, Flags(processes="2", coordinator="a:1"), ["--process I"]),
    "a number too high": (
        {}, Flags(coordinator="a:1", processes="2", process="2"), ["--process=2", "--processes=2", "0 to 1"],
    ),
    "a port missing": (
        {}, Flags(coordinator="node1", processes="2", process="0"), ["--coordinator=node1", "node1:8476"],
    ),
    "a number that is none": ({"MESHTRAIN_PROCESSES": "two"}, Flags(), ["MESHTRAIN_PROCESSES=two", "whole number"]),
    "a rank that is none": (OMPI | {"OMPI_COMM_WORLD_RANK": "x"}, Flags(), ["OMPI_COMM_WORLD_RANK=x"]),
    "a job's number that is none": (slurm("n1", 1, 0, SLURM_JOB_ID="12_3"), Flags(), ["SLURM_JOB_ID=12_3"]),
    "a place on its host that is none": (
        slurm("n[1-2]", 2, 1, SLURM_LOCALID="5", SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_NODEID="1"), Flags(),
        ["SLURM_LOCALID=5", "SLURM_STEP_TASKS_PER_NODE=1(x2)", "0 to 0"],
    ),
    "a number without others": ({}, Flags(processes="1", process="1"), ["--process=1", "one process"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_traps_are_errors_with_a_remedy(name: str) -> None:
    environ, flags, words = BAD[name]
    with pytest.raises(InputError) as raised:
        recognise(environ, "me", flags)
    for word in words:
        assert word in str(raised.value)


def test_device_files_count_where_no_variable_does() -> None:
    assert recognise({}, "me", gpus_there=8).gpus == tuple(range(8))
    assert recognise(OMPI, "me", gpus_there=8).gpus == (1,)
    assert recognise({"CUDA_VISIBLE_DEVICES": ""}, "me", gpus_there=8).gpus == ()
    assert recognise({"CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e,-1,GPU-3d"}, "me", gpus_there=8).gpus == (0, 1)
    assert recognise({"CUDA_VISIBLE_DEVICES": "none"}, "me", gpus_there=8).gpus == ()
    assert recognise(slurm("n1", 1, 0, SLURM_GPUS_ON_NODE="2"), "me", gpus_there=8).gpus == (0, 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", "n1"), ("n[1-3]", "n1 n2 n3"), ("n[08-10],m5", "n08 n09 n10 m5"), ("a,b,c", "a b c"),
        ("n[1,3-4,007]x", "n1x n3x n4x n007x"), ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"), ("n[9-10]", "n9 n10"),
    ],
)  # fmt: skip
def test_node_lists_are_written_out(text: str, names: str) -> None:
    assert list(expand_nodes(text)) == names.split()


@pytest.mark.parametrize("text", ["n[1-", "n[3-1]", ",", "n[a]", "n]1[", "n[1-2,[4-5]]"])
def test_node_lists_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        expand_nodes(text)


def test_task_counts_are_those_of_each_node() -> None:
    assert [tasks_of_node("8(x2),4,1(x3)", node) for node in range(7)] == [8, 8, 4, 1, 1, 1, None]
    with pytest.raises(InputError, match=r"'x' is not N"):
        tasks_of_node("8,x", 0)


def test_short_forms_of_very_many_are_no_work() -> None:
    """The first node is all that a start needs; written out, these are 1e18 names and counts."""
    env = slurm("n[1-2]", 2, 1) | {
        "SLURM_STEP_NODELIST": "n[001-999999999999999999]r[1-9]", "SLURM_STEP_TASKS_PER_NODE": "4(x999999999999999999)",
    }  # fmt: skip
    found = recognise(env, "me")
    assert (found.coordinator or "").startswith("n001r1:")
    assert found.local_count == 4


LONG = "9" * 5000  # more digits than int() takes


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({}, Flags(processes=LONG)), ({}, Flags(process=LONG)), ({}, Flags(wait=LONG)),
        ({}, Flags("me:1", "2000000", "0")), ({}, Flags(f"me:{LONG}", "2", "0")),
        ({"MESHTRAIN_PROCESSES": LONG}, Flags()), (OMPI | {"OMPI_COMM_WORLD_SIZE": LONG}, Flags()),
        (slurm("n1", 1, 0) | {"SLURM_STEP_NODELIST": f"n[{LONG}]"}, Flags()),
        (slurm("n1", 1, 0, SLURM_JOB_ID=LONG), Flags()), (slurm("n1", 1, 0, per_node=f"{LONG}(x2)"), Flags()),
    ],
)  # fmt: skip
def test_numbers_of_any_length_are_refused_in_a_few_words(environ: dict[str, str], flags: Flags) -> None:
    with pytest.raises(InputError) as refused:
        recognise(environ, "me", flags)
    assert len(str(refused.value)) < 400


def test_processes_are_listed_by_host_and_a_scattered_host_is_named() -> None:
    cards = [{"host": host, "devices": 4, "kind": "H100"} for host in ("a", "a", "b", "b", "c")]
    lines = [
        "process  host  local devices",
        "0-1      a     4 H100 each",
        "2-3      b     4 H100 each",
        "4        c     4 H100",
    ]
    assert processes_table(cards).splitlines() == [f"  {line}" for line in lines]
    assert scattered(["a", "a", "b", "b"]) is None
    assert "the processes of a are not numbered" in str(scattered(["a", "b", "a", "b"]))


@pytest.mark.parametrize("name", ["one task with 8 GPUs on each of two nodes", "a pod of a JobSet", "nothing"])
def test_a_dry_run_prints_the_table_and_starts_nothing(tmp_path: Path, name: str) -> None:
    environ, (launcher, count, index, coordinator, *_) = CASES[name]
    ours = ("SLURM", "OMPI", "MESHTRAIN", "CUDA", "JOB", "HOSTNAME")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    command = [sys.executable, "-m", "meshtrain.train", *write_run(tmp_path), "--dry-run"]
    done = subprocess.run(command, env=clean | environ, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[1:]}
    assert done.stdout.startswith(f"started by: {launcher}\n")
    assert rows["processes"][1] == str(count)
    assert rows["process"][1] == str(index)
    assert rows["coordinator"][1] == (coordinator or "none")
    local = [line for line in done.stdout.splitlines() if line.strip().startswith("local ")]
    assert local[0].split()[2].rstrip(":") == "8"
    assert not (tmp_path / "run").exists()


def test_a_dry_run_ends_with_the_error_of_a_trap(tmp_path: Path) -> None:
    environ, _, words = BAD["one task per node sees one of its GPUs"]
    command = [sys.executable, "-m", "meshtrain.train", *write_run(tmp_path), "--dry-run"]
    done = subprocess.run(
        command, env=dict(os.environ) | environ, cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert words[1] in done.stderr
