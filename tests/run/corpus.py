"""A small prepared corpus of bytes, with held-out documents."""

from pathlib import Path
from typing import Any

from meshtrain.io import PrepareConfig, prepare


def prepare_bytes(folder: Path, words: str = "says", num_texts: int = 40, times: int = 8) -> dict[str, Any]:
    """Prepares short texts below `folder`; returns the `data` section that reads them. The model's vocab: 257."""
    text, output = folder / "text", folder / "prepared"
    text.mkdir(parents=True)
    for number in range(num_texts):
        (text / f"{number}.txt").write_text(f"the {number}th text {words} {number} times {number}. " * times)
    prepare(PrepareConfig((f"{text}/*.txt",), "byte", str(output), held_out=0.2), progress=False)
    return {"kind": "tokens", "paths": [str(output)], "length": 16}
