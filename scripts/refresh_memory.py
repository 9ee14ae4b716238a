"""Compiles the steps of tests/cost/memory_cases.py for H100s and writes what they take into tests/goldens/memory.json.

    python scripts/refresh_memory.py            all of them: about ten minutes; no GPU needed, the cuda13 extra is
    python scripts/refresh_memory.py 8b zero3   those whose names hold all of these words
    python scripts/refresh_memory.py missing    those that are not in the file yet

Review its diff as you would review code: tests/cost/test_memory.py holds the prediction against these figures.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from meshtrain.run.compiler import compile_without_gpus  # noqa: E402


def compiled_memory(name: str) -> dict[str, int]:
    """What the compiler says of one step, in bytes of a device."""
    compile_without_gpus()
    from meshtrain.audit import compile_step
    from tests.cost.memory_cases import CASES, layout_of

    case = CASES[name]
    compiled = compile_step(
        case.config(), layout_of(case), case.gpus, global_batch=case.batch, length=case.length, packed=case.packed,
        gpu="h100",
    )  # fmt: skip
    memory = compiled.memory_analysis()
    kinds = ("argument", "output", "alias", "temp")
    return {kind: int(getattr(memory, f"{kind}_size_in_bytes")) for kind in kinds}


def main(words: list[str]) -> None:
    """Writes the file anew after each case, so that nothing is lost."""
    compile_without_gpus()
    from tests.cost.memory_cases import CASES, GOLDEN

    found = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    found = {name: value for name, value in found.items() if name in CASES}
    for name in CASES:
        if name in found if words == ["missing"] else not all(word in name.split() for word in words):
            continue
        found[name] = compiled_memory(name)
        print(f"{name}: {found[name]}", flush=True)
        GOLDEN.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
