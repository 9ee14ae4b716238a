"""The audited traffic of every layout file, as golden text: a small model's step, compiled for 16 H100s without a GPU.

Whatever is not as planned has its reason here, by the words of its line; a line without one fails the test. Run as a
program (`python -m tests.goldens.ledgers FOLDER [LAYOUT ...]`) it writes the texts: the compiler is chosen before any
device is touched. Never the program's own text: that changes with every version of the compiler.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "audit"
LAYOUTS = sorted((ROOT / "configs" / "layouts").glob("*.py"))
NUM_DEVICES, GLOBAL_BATCH, LENGTH = 16, 256, 512

# Words of a line -> why it is not as planned.
REASONS = {
    "one all-reduce in place of a reduce-scatter and a sum of the parts": (
        "the sum of a table's parts is taken over several groups of axes at once, and cut afterwards"
    ),
    "an all-reduce in place of a reduce-scatter": (
        "what is joined once a step or used side by side is summed whole, and cut afterwards"
    ),
}


def layouts() -> list[Path]:
    """The files of dense models whose fixed axes fit 16 devices; published runs are audited at their own size."""
    from meshtrain.run import config_file

    def fits(path: Path) -> bool:
        values = config_file.read(str(path), "layout").values
        dense = "expert" not in values.get("rules", {})
        return dense and NUM_DEVICES % math.prod(size for size in values["mesh"].values() if size > 0) == 0

    return [path for path in LAYOUTS if path.stem != "single" and fits(path)]


def ledger_text(path: Path) -> str:
    """The golden of a layout: totals, then every line of the ledger."""
    from meshtrain.audit import compile_step
    from meshtrain.audit.collectives import read_collectives
    from meshtrain.audit.hlo import parse_module
    from meshtrain.audit.ledger import make_ledger
    from meshtrain.cost.traffic import predict_traffic
    from meshtrain.layout import Layout, place_abstract
    from meshtrain.model import ModelConfig
    from meshtrain.run import config_file
    from meshtrain.step import Precision, StepConfig

    model = ModelConfig(
        num_layers=4, embed=256, num_heads=16, num_kv_heads=8, head_dim=32, mlp=512, vocab=2048, max_length=LENGTH
    )
    step = StepConfig(model, precision=Precision("bfloat16"))
    layout = Layout.parse(config_file.read(str(path), "layout").values, path.stem)
    place = place_abstract(layout, NUM_DEVICES)
    compiled = compile_step(
        step, layout, NUM_DEVICES, global_batch=GLOBAL_BATCH, length=LENGTH,
        options={"xla_backend_optimization_level": "0"},
    )  # fmt: skip
    text = compiled.as_text()
    assert text is not None
    found = read_collectives(parse_module(text), place.axis_sizes, layout.pipeline is not None)
    planned = predict_traffic(step, place, global_batch=GLOBAL_BATCH, length=LENGTH)
    return "\n".join(_lines(path.stem, make_ledger(planned, found)))


def _lines(name: str, ledger: Any) -> Iterator[str]:
    ratio = ledger.found / ledger.planned
    yield f"{name}: planned {ledger.planned:,.0f} bytes, found {ledger.found:,.0f} ({ratio:.4f})"
    for one in sorted(ledger.entries, key=lambda e: (e.status, e.phase, e.kind, e.axes, e.why, e.found)):
        line = (
            f"{one.status:10} {one.phase:8} {one.kind:14} {' x '.join(one.axes):20} {one.dim:8} x {one.times:<5}"
            f" {one.planned:>14,.0f} {one.found:>14,.0f}  {one.why}"
        )
        yield line + (f"; {one.note}" if one.note else "")
        if one.status != "expected":
            yield f"{'':11}reason: {reason(one.note or one.why)}"


def reason(words: str) -> str:
    """Why a line is not as planned; "NONE" where nobody has said so yet."""
    return next((text for part, text in REASONS.items() if part in words), "NONE")


if __name__ == "__main__":
    from meshtrain.run.compiler import compile_without_gpus

    compile_without_gpus()
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for file in layouts():
        if not names or file.stem in names:
            (folder / f"{file.stem}.txt").write_text(ledger_text(file) + "\n")
            print(file.stem, flush=True)
