"""The scripts for clusters, as they are: under a Slurm of two nodes, under mpirun, and Kubernetes by its manifest."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshtrain.errors import Exit
from meshtrain.run.processes import recognise
from meshtrain.run.processes.meeting import free_port
from tests.run import hosts
from tests.run.processes import slurm
from tests.run.runs import ROOT, numbers, records, write_run

SCRIPTS = ROOT / "scripts"
CLOSE = 1e-5


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, str]]:
    """The environment of Slurm's commands."""
    reason = slurm.why_not()
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # sockets need short paths
    try:
        with slurm.two_nodes(folder) as environment:
            yield hosts.environment(**environment, PYTHON=sys.executable)
    finally:
        shutil.rmtree(folder)


def submit(environment: dict[str, str], log: Path, *arguments: str) -> str:
    """Submits the script as a user would; the job's number."""
    command = [
        "sbatch",
        "--parsable",
        f"--output={log}",
        "--time=30",
        str(SCRIPTS / "slurm.sbatch"),
        *arguments,
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def finished(environment: dict[str, str], job: str, seconds: float = 60) -> int:
    """Waits for the job's end; its exit code."""
    deadline = time.monotonic() + seconds
    while True:
        show = ["scontrol", "--oneliner", "show", "job", job]
        said = subprocess.run(show, env=environment, capture_output=True, text=True, check=True, timeout=30).stdout
        if re.search(r"JobState=(COMPLETED|FAILED|TIMEOUT|CANCELLED)", said):
            return int(re.findall(r" ExitCode=(\d+):", said)[0])
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def wait_for(log: Path, text: str, seconds: float = 120) -> str:
    """What the log says, as soon as it holds `text`; at once an error where it holds one of Python's."""
    deadline = time.monotonic() + seconds
    while text not in (said := log.read_text() if log.exists() else ""):
        assert "Traceback" not in said, said
        assert time.monotonic() < deadline, f"no {text!r} within {seconds} s:\n{said}"
        time.sleep(0.1)
    return said


@pytest.mark.slow
def test_slurm_runs_the_script_on_two_nodes_and_queues_it_again(
    tmp_path: Path, cache: Path, nodes: dict[str, str]
) -> None:
    """A signal as before a time limit: saved, queued again, gone on with, done; one record for each step."""
    run = write_run(tmp_path, steps=100, checkpoint={"every": 1000})
    log = tmp_path / "job.log"
    job = submit(nodes, log, *run, f"--config.compilation_cache={cache}")
    said = wait_for(log, "step 5/100")
    assert "started by: Slurm" in said
    assert re.search(r"coordinator +meshtrain-n1:6\d{4} +first of SLURM_STEP_NODELIST=meshtrain-n\[1-2\]", said)
    assert re.search(r"0 +meshtrain-n1 +4 cpu\n +1 +meshtrain-n2 +4 cpu", said)
    assert "mesh axes inside a host: none; across hosts: data=8" in said
    subprocess.run(["scancel", "--signal=USR1", job], env=nodes, check=True, timeout=30)
    said = wait_for(log, "done: step 100 of 100")
    assert "SIGUSR1" in said
    assert f"exit code {Exit.PREEMPTED:d} after 0 restarts: the job is queued again" in said
    assert re.search(r"restarts +1 +SLURM_RESTART_COUNT", said)
    assert sorted(records(tmp_path)) == list(range(1, 101))


@pytest.mark.slow
def test_slurm_shows_each_node_its_gpus_in_a_dry_run(tmp_path: Path, nodes: dict[str, str]) -> None:
    log = tmp_path / "job.log"
    job = submit(nodes, log, "--dry-run", *write_run(tmp_path))
    assert finished(nodes, job) == 0
    said = log.read_text()
    assert len(re.findall(r"local GPUs +8: 0,1,2,3,4,5,6,7", said)) == 2, said
    assert {line.split()[1] for line in said.splitlines() if line.startswith("  process ")} == {"0", "1"}
    assert {line.split()[1] for line in said.splitlines() if line.startswith("  host ")} == set(slurm.NODES)


# A stand-in for python and the trainer: the first start ends with an exit code for each process, the next one well.
STAND_IN = """#!/usr/bin/env bash
rank=${SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}
echo "process $rank: $*"
[ -e "$STARTED.$rank" ] && exit 0
touch "$STARTED.$rank"
codes=($CODES)
exit ${codes[$rank]}
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """The environment in which the scripts start the stand-in."""
    program = tmp_path / "stand-in"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return {"PYTHON": str(program), "STARTED": str(tmp_path / "started")}


@pytest.mark.slow
@pytest.mark.parametrize(("codes", "expected", "again"), [("2 2", Exit.BAD_INPUT, False), ("137 7", Exit.DONE, True)])
def test_slurm_queues_again_what_another_start_mends(
    tmp_path: Path, nodes: dict[str, str], stand_in: dict[str, str], codes: str, expected: int, again: bool
) -> None:
    log = tmp_path / "job.log"
    job = submit(nodes | stand_in | {"CODES": codes}, log, "--config", "a b.py")
    assert finished(nodes, job) == expected
    said = log.read_text()
    assert ("is queued again" in said) == again
    assert said.count("process 1: -u -m meshtrain.train --config a b.py") == 1 + again


@pytest.mark.slow
@pytest.mark.parametrize(("codes", "expected", "starts"), [("2 2", 2, 1), ("5 5", 5, 1), ("7 7", 0, 2)])
def test_mpirun_is_started_again_where_that_mends(
    stand_in: dict[str, str], codes: str, expected: int, starts: int
) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI's mpirun")
    environment = hosts.environment(**stand_in, CODES=codes, PORT="1234")
    command = [str(SCRIPTS / "mpi.sh"), "--config", "a b.py"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == expected, done.stdout + done.stderr
    line = "process 1: -u -m meshtrain.train --coordinator localhost:1234 --config a b.py"
    assert done.stdout.count(line) == starts


@pytest.mark.slow
def test_mpirun_runs_the_script(tmp_path: Path, cache: Path, unbroken: Path) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI's mpirun")
    run = write_run(tmp_path)
    done = subprocess.run(
        [str(SCRIPTS / "mpi.sh"), *run, f"--config.compilation_cache={cache}"],
        env=hosts.environment(PYTHON=sys.executable, PORT=str(free_port())),
        cwd=ROOT, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started by: Open MPI" in done.stdout
    assert re.search(r"processes +2 +OMPI_COMM_WORLD_SIZE", done.stdout)
    assert re.search(
        r"on this host +process 0 of 2 +OMPI_COMM_WORLD_LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_SIZE", done.stdout
    )
    losses = [[record["loss"] for record in records(folder).values()] for folder in (tmp_path, unbroken)]
    assert losses[0] == pytest.approx(losses[1], abs=CLOSE)
    assert numbers(tmp_path, "step", "learning_rate") == numbers(unbroken, "step", "learning_rate")


# What a JobSet may hold, as far as ours goes: key -> the kind of its value. From the API reference of JobSet v1alpha2
# and of Kubernetes 1.31 (batch/v1 Job, core/v1 Pod). A dict: an object with these keys alone; a list: of such.
# The manifest was also read by the models of kubeflow-trainer-api 2.3.0, which are generated from the OpenAPI schemas
# of both (JobsetV1alpha2JobSet.from_dict): no key is lost on the way back, no value is refused.
TEXT, WHOLE, YES_NO = (str,), (int,), (bool,)
ENVIRONMENT = {"name": TEXT, "value": TEXT, "valueFrom": {"fieldRef": {"fieldPath": TEXT}}}
CONTAINER = {
    "name": TEXT, "image": TEXT, "command": [TEXT], "args": [TEXT], "env": [ENVIRONMENT],
    "ports": [{"containerPort": WHOLE}], "resources": {"limits": dict},
    "volumeMounts": [{"name": TEXT, "mountPath": TEXT}],
}  # fmt: skip
VOLUME = {
    "name": TEXT, "persistentVolumeClaim": {"claimName": TEXT}, "emptyDir": {"medium": TEXT, "sizeLimit": TEXT}
}  # fmt: skip
POD = {
    "restartPolicy": TEXT, "terminationGracePeriodSeconds": WHOLE, "containers": [CONTAINER], "volumes": [VOLUME]
}  # fmt: skip
POD_RULE = {"action": TEXT, "onExitCodes": {"containerName": TEXT, "operator": TEXT, "values": [WHOLE]}}
JOB = {
    "completionMode": TEXT, "completions": WHOLE, "parallelism": WHOLE, "backoffLimit": WHOLE,
    "podFailurePolicy": {"rules": [POD_RULE]}, "template": {"spec": POD},
}  # fmt: skip
JOBSET_RULE = {"name": TEXT, "action": TEXT, "onJobFailureReasons": [TEXT]}
JOBSET = {
    "apiVersion": TEXT, "kind": TEXT, "metadata": {"name": TEXT},
    "spec": {
        "network": {"enableDNSHostnames": YES_NO},
        "failurePolicy": {"maxRestarts": WHOLE, "rules": [JOBSET_RULE]},
        "replicatedJobs": [{"name": TEXT, "replicas": WHOLE, "template": {"spec": JOB}}],
    },
}  # fmt: skip


def wrong(value: Any, kind: Any, where: str = "") -> list[str]:
    """What is not as the table says, by path."""
    if isinstance(kind, dict):
        if not isinstance(value, dict):
            return [f"{where}: an object"]
        unknown = [f"{where}.{key}: no such key" for key in value if key not in kind]
        return unknown + [
            line for key in value if key in kind for line in wrong(value[key], kind[key], f"{where}.{key}")
        ]
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{where}: a list"]
        return [line for number, each in enumerate(value) for line in wrong(each, kind[0], f"{where}[{number}]")]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return [] if type(value) in kinds else [f"{where}: {value!r} is no {kinds[0].__name__}"]


def manifest() -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load((SCRIPTS / "kubernetes-jobset.yaml").read_text()))


def test_the_manifest_is_a_jobset() -> None:
    found = manifest()
    assert wrong(found, JOBSET) == []
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    (workers,) = found["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # what a podFailurePolicy asks for
    (container,) = job["template"]["spec"]["containers"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
    assert set(rule["onExitCodes"]["values"]) == {Exit.FAULT, Exit.BAD_INPUT, Exit.NOT_FINITE, Exit.STORAGE}
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in job["template"]["spec"]["volumes"]
    }
    assert found["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"
    # The table bites: a key that is misspelt, and a number that is a text.
    job["completion"], job["backoffLimit"] = 4, "0"
    assert len(wrong(found, JOBSET)) == 2


def test_every_pod_of_the_manifest_knows_its_place() -> None:
    """The environment that Kubernetes makes of it: the pod's index and name, and labels through the downward API."""
    found = manifest()
    name = found["metadata"]["name"]
    (workers,) = found["spec"]["replicatedJobs"]
    job = workers["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/restart-attempt": "3"}
    fields = {f"metadata.labels['{label}']": value for label, value in labels.items()}
    for index in range(job["completions"]):
        environ = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": f"{name}-{workers['name']}-0-{index}"}
        for entry in container["env"]:
            environ[entry["name"]] = entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        me = recognise(environ, environ["HOSTNAME"], gpus_there=container["resources"]["limits"]["nvidia.com/gpu"])
        assert (me.launcher, me.count, me.index, me.restarts) == ("Kubernetes", 4, index, 3)
        assert me.coordinator == f"{name}-{workers['name']}-0-0.{name}:{container['ports'][0]['containerPort']}"
        assert me.gpus == tuple(range(8))


@pytest.mark.parametrize("script", ["slurm.sbatch", "mpi.sh"])
def test_scripts_are_bash_and_can_be_started(script: str) -> None:
    subprocess.run(["bash", "-n", str(SCRIPTS / script)], check=True, timeout=30)
    assert os.access(SCRIPTS / script, os.X_OK)
