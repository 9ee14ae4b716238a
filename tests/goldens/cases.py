"""What is kept as golden text: the `show` report of every layout file on a tiny model, and of large ones at scale.

`scripts/refresh_goldens.py` writes the files anew; their diff is what a review reads.
"""

import math
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
    sizes = config_file.read(str(ROOT / "configs" / "models" / f"{model}.py"), "model").values
    values = dict(
        model={**sizes, "max_length": max(length, sizes["max_length"])},
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
    runs = {model: run_of(model, length=512, global_batch=128, compute="float32") for model in ("tiny", "tiny_moe")}
    for layout in LAYOUTS:
        values = config_file.read(str(layout), "layout").values
        if math.prod(size for size in values["mesh"].values() if size > 0) > NUM_DEVICES:
            continue  # of a published run: shown at its own size below
        model = "tiny_moe" if "expert" in values.get("rules", {}) else "tiny"
        report = make_report(runs[model], values, layout.stem, NUM_DEVICES)
        yield FOLDER / f"{model}_{layout.stem}.txt", report_text(report)
    yield FOLDER / "llama3_405b_tensor_zero3_16384.txt", large_text()
    yield FOLDER / "llama3_405b_128k_16384.txt", long_text()
    yield FOLDER / "deepseek_v3_2048.txt", experts_text()


def large_text() -> str:
    """Llama 3 405B under ZeRO-3 x tensor 8 on 16,384 devices."""
    run = run_of("llama3_405b", length=8192, global_batch=2048, compute="bfloat16")
    values = config_file.read(str(ROOT / "configs" / "layouts" / "tensor_zero3.py"), "layout").values
    values["mesh"]["tensor"] = 8
    return report_text(make_report(run, values, "tensor_zero3", 16384, fast_devices=8))


def long_text() -> str:
    """Llama 3 405B at 131,072 tokens under the published layout on 16,384 devices."""
    run = run_of("llama3_405b", length=131072, global_batch=128, compute="bfloat16")
    values = config_file.read(str(ROOT / "configs" / "layouts" / "llama3_405b_128k.py"), "layout").values
    return report_text(make_report(run, values, "llama3_405b_128k", 16384, fast_devices=8))


def experts_text() -> str:
    """DeepSeek-V3 under its published layout on 2,048 devices."""
    run = run_of("deepseek_v3", length=4096, global_batch=15360, compute="bfloat16")
    values = config_file.read(str(ROOT / "configs" / "layouts" / "deepseek_v3.py"), "layout").values
    return report_text(make_report(run, values, "deepseek_v3", 2048))
