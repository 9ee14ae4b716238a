"""Two hosts whose network is cut while they train: two network namespaces, each with its own name and address.

Nothing tells either of them: connections stay open and silent, and the folder that both share can still be read.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshtrain.errors import Exit
from tests.run import hosts
from tests.run.runs import ROOT, records, write_run

WATCH = {"floor": 8, "lost": 4, "start": 120}
NAMES = ("mtpart0", "mtpart1")  # of the namespaces, of their ends of the cable, and of the hosts in them
PORT = 8476


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture
def cable() -> Iterator[None]:
    """The two namespaces with a cable between them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("only root makes network namespaces, with iproute2")
    with contextlib.ExitStack() as cleanup:
        try:
            for name in NAMES:
                ip("netns", "add", name)
                cleanup.callback(ip, "netns", "del", name)
            ip("link", "add", NAMES[0], "netns", NAMES[0], "type", "veth", "peer", "name", NAMES[1], "netns", NAMES[1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr!r}")
        for number, name in enumerate(NAMES):
            ip("-n", name, "addr", "add", f"10.213.0.{number + 1}/30", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield


def start(number: int, folder: Path, *argv: str) -> "subprocess.Popen[str]":
    """Process `number` on its host: what a host's name means is its own too, since JAX's processes exchange names."""
    known = folder / "hosts"
    known.write_text(
        "".join(f"10.213.0.{other + 1} {name}\n" for other, name in enumerate(NAMES)) + "127.0.0.1 localhost\n"
    )
    inside = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
    place = ["--coordinator", f"{NAMES[0]}:{PORT}", "--processes", "2", "--process", str(number)]
    return subprocess.Popen(
        ["ip", "netns", "exec", NAMES[number], "unshare", "--mount", "--uts", "sh", "-c", inside, NAMES[number],
         str(known), sys.executable, "-m", "meshtrain.train", *argv, *place],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=hosts.environment(),
    )  # fmt: skip


@pytest.mark.slow
def test_hosts_that_are_cut_off_from_each_other_end_and_go_on_when_the_network_is_back(
    tmp_path: Path, cache: Path, cable: None
) -> None:
    run = [*write_run(tmp_path, watch=WATCH), f"--config.compilation_cache={cache}"]
    with contextlib.ExitStack() as cleanup:
        both = [start(number, tmp_path, *run, "--config.steps=100000") for number in range(2)]
        for process in both:
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
        assert both[0].stdout is not None
        said = ""
        while "step 4/" not in said:
            line = both[0].stdout.readline()
            assert line, said
            said += line
        ip("-n", NAMES[1], "link", "set", NAMES[1], "down")
        began = time.monotonic()
        said += both[0].communicate(timeout=60)[0]
        other = both[1].communicate(timeout=30)[0]
        assert time.monotonic() - began < 45
    assert {process.returncode for process in both} <= {Exit.HANG, Exit.PEER_LOST}, said + other
    for text in (said, other):
        assert "error: " in text
    ip("-n", NAMES[1], "link", "set", NAMES[1], "up")
    reached = max(records(tmp_path))
    both = [start(number, tmp_path, *run, f"--config.steps={reached + 3}") for number in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    assert sorted(records(tmp_path)) == list(range(1, reached + 4))
