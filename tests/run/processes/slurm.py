"""A Slurm of two nodes with 8 invented GPUs each on this machine; it lives in a folder of its own and ends with it."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshtrain.run.processes.meeting import free_port

NODES = ("meshtrain-n1", "meshtrain-n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")

CONFIG = """\
ClusterName=test
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
GresTypes=gpu
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
"""


def why_not() -> str | None:
    """What this machine lacks for it."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    if missing:
        return f"needs Slurm and munge; not installed: {', '.join(missing)}"
    if os.getuid() != 0:
        return "needs to be root, to start Slurm's daemons"
    try:
        for node in NODES:
            socket.gethostbyname(node)
    except OSError:
        return f"needs the names {' and '.join(NODES)} as 127.0.0.1 in /etc/hosts"
    return None


@contextmanager
def two_nodes(folder: Path) -> Iterator[dict[str, str]]:
    """Starts the daemons with their files in `folder`; gives the environment in which Slurm's commands find them."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    devices = folder / "gpu"
    devices.mkdir()
    for number in range(8):
        (devices / f"fake{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={devices}/fake[0-7]\n")
    text = CONFIG.format(machine=socket.gethostname().split(".")[0], controller=free_port(), folder=folder)
    for node in NODES:
        text += f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 Gres=gpu:8\n"
    config = folder / "slurm.conf"
    config.write_text(text + "PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=60\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
    environment["SLURM_CONF"] = str(config)
    files = [f"--{what}={folder}/munge.{what.split('-')[0]}" for what in ("key-file", "socket", "pid-file", "log-file")]
    commands = [
        ["munged", "--foreground", "--force", *files, f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D", "-f", str(config)],
        *(["slurmd", "-D", "-N", node, "-f", str(config)] for node in NODES),
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            log = open(folder / f"{command[0]}-{len(daemons)}.out", "w")  # noqa: SIM115  (the daemon's)
            with log:
                program = _program(command[0]) or command[0]
                daemons.append(
                    subprocess.Popen([program, *command[1:]], stdout=log, stderr=log, env=environment, cwd=folder)
                )
            _wait_for(folder / "munge.socket")
        _wait_until_idle(folder, environment)
        try:
            yield environment
        finally:  # of a test that failed: its job would outlive the daemons
            cancel = ["scancel", "--signal=KILL", "--full", f"--user={os.getuid()}"]
            subprocess.run(cancel, env=environment, timeout=30, check=False)
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _wait_for(path: Path, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def _wait_until_idle(folder: Path, environment: dict[str, str], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while True:
        done = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True)
        if done.stdout.split() == ["idle", "2"]:
            return
        logs = "\n".join(path.read_text()[-2000:] for path in (*folder.glob("*.out"), *folder.glob("*.log")))
        assert time.monotonic() < deadline, f"Slurm did not start: {done.stdout} {done.stderr}\n{logs}"
        time.sleep(0.2)
