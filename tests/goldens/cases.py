"""What is kept as golden text: the `show` report of every layout file on the tiny model, and of Llama 3 405B at scale.

`scripts/refresh_goldens.py` writes the files anew; their diff is what a review reads.
"""

from collections.abc import Iterator
from pathlib import Path

from meshtrain.run import config_file, schema
from meshtrain.run.config import RunConfig
from meshtrain.run.show import make_report, report_text

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "show"
LAYOUTS = sorted((ROOT / "configs" / "layouts").glob("*.py"))

NUM_DEVICES = 8


def run_of(model: str, length: int, global_batch: int, compute: str) -> RunConfig:
    """A run of a model file on random tokens."""
    values = dict(
        model=config_file.read(str(ROOT / "configs" / "models" / f"{model}.py"), "model").values,
        data=dict(kind="synthetic", length=length),
        precision=dict(compute=compute),
        global_batch=global_batch,
        steps=1,
        workdir="runs/golden",
        layout="configs/layouts/single.py",
    )
    return schema.build(RunConfig, values, "config")


def golden_files() -> Iterator[tuple[Path, str]]:
    """(file, text) of every golden."""
    tiny = run_of("tiny", length=512, global_batch=16, compute="float32")
    for layout in LAYOUTS:
        values = config_file.read(str(layout), "layout").values
        yield FOLDER / f"tiny_{layout.stem}.txt", report_text(make_report(tiny, values, layout.stem, NUM_DEVICES))
    yield FOLDER / "llama3_405b_tensor_zero3_16384.txt", large_text()


def large_text() -> str:
    """Llama 3 405B under ZeRO-3 x tensor 8 on 16,384 devices."""
    run = run_of("llama3_405b", length=8192, global_batch=2048, compute="bfloat16")
    values = config_file.read(str(ROOT / "configs" / "layouts" / "tensor_zero3.py"), "layout").values
    values["mesh"]["tensor"] = 8
    return report_text(make_report(run, values, "tensor_zero3", 16384, fast_devices=8))
