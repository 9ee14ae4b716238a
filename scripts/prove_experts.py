"""Proves experts under every arrangement: dropless and capacity x 2, 4, 8 experts' devices x what is beside them.

    python scripts/prove_experts.py                    all 58 layouts that fit 8 devices
    python scripts/prove_experts.py dropless 4         those whose names have all of these words
    python scripts/prove_experts.py --write FOLDER     their layout files, to be proved or trained one by one

Each is a layout file of its own, handed to `python -m meshtrain.prove` with the run `quickstart_moe`.
"""

import math
import pprint
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(ROOT := Path(__file__).resolve().parents[1]))

RUN = ROOT / "configs" / "runs" / "quickstart_moe.py"
DISPATCHES: dict[str, dict[str, Any]] = {
    "dropless": dict(dispatch="dropless"),
    "capacity": dict(dispatch="capacity", capacity_factor=4.0),  # 8 experts, 2 of them for each token: room for all
}
SIZES = (2, 4, 8)
NUM_DEVICES = 8

Mapping = dict[str, Any]


def arrangements(size: int) -> dict[str, Mapping]:
    """Name -> layout, for experts on so many devices; those that fit NUM_DEVICES."""
    copies = min(2, NUM_DEVICES // size)
    own: Mapping = dict(mesh=dict(data=copies, expert=size), rules=dict(batch=("data", "expert"), expert="expert"))
    shared = 2 * size > NUM_DEVICES  # the experts' devices include those of the second axis
    data = size // 2 if shared else size
    over_tensor, over_context = ("data", "tensor")[: 1 + shared], ("data", "context")[: 1 + shared]
    tensor = dict(heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
    whole: Mapping = dict(expert_mlp=None) if shared else {}
    stage: Mapping = dict(mesh=dict(stage=2, expert=size), rules=dict(batch="expert", expert="expert", layers="stage"))
    found: dict[str, Mapping] = {
        "alone": dict(mesh=dict(data=copies, expert=size), rules=dict(batch="data", expert="expert")),
        "own": own,
        "folded": dict(mesh=dict(data=size), rules=dict(batch="data", expert="data")),
        "tensor": dict(
            mesh=dict(data=data, tensor=2), rules=dict(tensor, batch="data", expert=over_tensor) | whole,
            activations=dict(stream="tensor"),
        ),
        "zero1": own | dict(optimizer=dict(embed=("data", "expert"), expert_embed="data")),
        "zero2": own | dict(grads=dict(embed=("data", "expert"), expert_embed="data"), accumulate=2),
        "zero3": own | dict(params=dict(embed=("data", "expert"), expert_embed="data")),
        "context": dict(
            mesh=dict(data=data, context=2), rules=dict(batch="data", length="context", expert=over_context),
            activations=dict(stream="context"), attention="ring", order="zigzag",
        ),
        "1f1b": stage | dict(pipeline=dict(schedule="1f1b", microbatches=4)),
        "accumulate": own | dict(accumulate=2),
    }  # fmt: skip
    return {name: one for name, one in found.items() if _devices(one) <= NUM_DEVICES}


def _devices(mapping: Mapping) -> int:
    return math.prod(mapping["mesh"].values())


def grid() -> dict[str, Mapping]:
    """Name -> layout, such as dropless-4-zero1."""
    return {
        f"{dispatch}-{size}-{name}": layout | dict(experts=experts)
        for dispatch, experts in DISPATCHES.items()
        for size in SIZES
        for name, layout in arrangements(size).items()
    }


def write(folder: Path, layouts: dict[str, Mapping]) -> list[str]:
    """The layout files, and their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, layout in layouts.items():
        text = f'"""Experts: {name.replace("-", ", ")}."""\n\nfrom ml_collections import ConfigDict\n\n\n'
        text += f"def get_config() -> ConfigDict:\n    return ConfigDict(\n{_indented(layout)}\n    )\n"
        (folder / f"{name}.py").write_text(text)
    return [str(folder / f"{name}.py") for name in layouts]


def _indented(layout: Mapping) -> str:
    return "\n".join(" " * 8 + line for line in pprint.pformat(layout, sort_dicts=False).splitlines())


def main(arguments: list[str]) -> int:
    """Exit code of `prove`; 2 where no layout has such a name."""
    if arguments[:1] == ["--write"]:
        print(*write(Path(arguments[1]), grid()), sep="\n")
        return 0
    chosen = {name: layout for name, layout in grid().items() if set(arguments) <= set(name.split("-"))}
    if not chosen:
        print(f"no layout has all of {' '.join(arguments)} in its name: {' '.join(grid())}", file=sys.stderr)
        return 2
    from meshtrain.prove import main as prove

    with tempfile.TemporaryDirectory() as folder:
        return prove(["--config", str(RUN), *write(Path(folder), chosen)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
