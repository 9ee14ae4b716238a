"""Writes the golden texts under tests/goldens anew. Review their diff as you would review code.

python scripts/refresh_goldens.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.goldens.cases import FOLDER, golden_files  # noqa: E402


def main() -> None:
    """Writes every golden file and removes those that belong to nothing any more."""
    FOLDER.mkdir(exist_ok=True)
    wanted = dict(golden_files())
    for old in set(FOLDER.glob("*.txt")) - set(wanted):
        old.unlink()
        print(f"removed {old.relative_to(ROOT)}")
    for path, text in wanted.items():
        changed = not path.exists() or path.read_text() != text + "\n"
        path.write_text(text + "\n")
        print(f"{'changed' if changed else 'same   '} {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
