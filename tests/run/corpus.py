"""A small prepared corpus of bytes, with held-out documents."""

from pathlib import Path
from typing import Any

from meshtrain.io import PrepareConfig, prepare


def prepare_bytes(folder: Path, words: str = "says") -> dict[str, Any]:
    """Prepares 40 short texts below `folder`; returns the `data` section that reads them. The model's vocab: 257."""
    text, output = folder / "text", folder / "prepared"
    text.mkdir(parents=True)
    for number in range(40):
        (text / f"{number}.txt").write_text(f"the {number}th text {words} {number} times {number}. " * 8)
    prepare(PrepareConfig((f"{text}/*.txt",), "byte", str(output), held_out=0.2), progress=False)
    return {"kind": "tokens", "paths": [str(output)], "length": 16}
