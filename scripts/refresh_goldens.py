"""Writes the golden texts under tests/goldens anew. Review their diff as you would review code.

python scripts/refresh_goldens.py

The ledgers of what layouts send need the cuda13 extra (no GPU), and some minutes; without it they are left as they are.
"""

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.goldens import ledgers  # noqa: E402
from tests.goldens.cases import FOLDER, golden_files  # noqa: E402


def main() -> None:
    """Writes every golden file and removes those that belong to nothing any more."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    FOLDER.mkdir(exist_ok=True)
    wanted = dict(golden_files())
    for old in set(FOLDER.glob("*.txt")) - set(wanted):
        old.unlink()
        print(f"removed {old.relative_to(ROOT)}")
    for path, text in wanted.items():
        changed = not path.exists() or path.read_text() != text + "\n"
        path.write_text(text + "\n")
        print(f"{'changed' if changed else 'same   '} {path.relative_to(ROOT)}")
    if find_spec("jax_cuda13_plugin") is None:
        print("left as they are, since the cuda13 extra is missing: tests/goldens/audit")
        return
    ledgers.FOLDER.mkdir(exist_ok=True)
    for old in ledgers.FOLDER.glob("*.txt"):
        if old.stem not in ledgers.names():
            old.unlink()
    # In a process of its own: a compiler for GPUs is chosen before jax is used.
    subprocess.run([sys.executable, "-m", "tests.goldens.ledgers", str(ledgers.FOLDER)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
