"""The search as a door runs it: the decisions in words, the best few, and the layout file that they make."""

import dataclasses
from pathlib import Path
from typing import Any

from meshtrain.cost.choice import AxisNames, Choice
from meshtrain.cost.cluster import USABLE, Cluster
from meshtrain.cost.decisions import Outcome, decide
from meshtrain.cost.search import Found, Search, Task, check_nodes
from meshtrain.cost.verdict import describe, seconds, waits
from meshtrain.errors import StorageError
from meshtrain.layout.words import plural, size_text
from meshtrain.run.config import RunConfig
from meshtrain.run.startup import step_config
from meshtrain.run.terminal import wrapped

# What a layout that was searched for calls its axes.
NAMES = AxisNames("data", "stage", "context", "model", "expert", "node")


def search_layout(config: RunConfig, cluster: Cluster, num_devices: int) -> Outcome:
    """The layout for a run on so many GPUs; InputError where they do not factor or nothing fits."""
    check_nodes(cluster, num_devices)
    step, data = step_config(config), config.data
    return decide(Search(Task(step, config.global_batch, data.length, data.packed, cluster, num_devices, NAMES)))


def search_text(outcome: Outcome) -> str:
    """The order of decisions, each with its numbers, and the fastest of the last step."""
    lines = [f"ORDER OF DECISIONS (usable: {USABLE:.0%} of a GPU's memory)", ""]
    for decision in outcome.decisions:
        lines.append(f"  {decision.number}. {decision.title}")
        for sentence in decision.found:
            lines += wrapped(sentence, "       ", "     ")
        lines += wrapped(f"-> {decision.taken}" if decision.taken else "-> no: on to the next", "        ", "     ")
    lines += ["", "THE BEST", ""]
    for found in outcome.others:
        lines += wrapped(_line(found), "      ", "    ")
    return "\n".join(lines)


def _line(found: Found) -> str:
    parts = sorted(found.time.parts.items(), key=lambda item: -item[1])
    most = ", ".join(f"{name} {value / found.time.seconds:.0%}" for name, value in parts[:3])
    verdict = waits(found)
    return (
        f"{describe(found.choice)}: {seconds(found)}, {size_text(found.memory.peak)}; {most}"
        f"{'; but ' + verdict if verdict else ''}"
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain JSON values."""
    return {
        "decisions": [dataclasses.asdict(decision) for decision in outcome.decisions],
        "best": [
            {
                "layout": found.choice.layout(NAMES),
                "step_seconds": found.time.seconds,
                "mfu": found.time.mfu,
                "peak_bytes": found.memory.peak,
            }
            for found in outcome.others
        ],
    }


def write_layout(path: str, choice: Choice, run: str, cluster: Cluster, num_devices: int) -> None:
    """The choice as a layout file. StorageError where it cannot be written."""
    text = layout_file(choice, run, cluster, num_devices)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    except OSError as error:
        raise StorageError(f"--write={path}: {error.strerror or error}.") from None


def layout_file(choice: Choice, run: str, cluster: Cluster, num_devices: int) -> str:
    """A layout file: a docstring that says what it is for, and one dict."""
    values = choice.layout(NAMES)
    values["mesh"] = {name: (-1 if name == NAMES.data else size) for name, size in values["mesh"].items()}
    rows = [f"        {key}={_value(value)}," for key, value in values.items()]
    words = describe(choice).replace(" x ", ", ")
    return "\n".join(
        [
            f'"""{words[:100]}.',
            "",
            f"Use it for {run} on {plural(num_devices, 'GPU')} of {cluster.name}: `python -m meshtrain.plan` found it.",
            '"""',
            "",
            "",
            "def get_config() -> dict:",
            "    return dict(",
            *rows,
            "    )",
            "",
        ]
    )


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"dict({', '.join(f'{key}={_value(inner)}' for key, inner in value.items())})"
    if isinstance(value, tuple):
        return f"({', '.join(_value(inner) for inner in value)})"
    return f'"{value}"' if isinstance(value, str) else repr(value)
