"""Becomes another program, killed when its parent ends in any way, kill -9 too: python mortal.py PARENT COMMAND...

A program of its own, since what a new process does between a fork and its program would run in the middle of the
parent's threads. PARENT: its process number. On anything but Linux the program is just that program.
"""

import ctypes
import os
import signal
import sys

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2); a program that is executed keeps it


def main() -> None:
    """Never returns."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before
            os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
