"""A serving plan as text and as JSON: vLLM's flags, the decisions, the room of the KV cache."""

import dataclasses
from typing import Any

from meshtrain.cost.serving import Serving
from meshtrain.layout.words import plural, size_text
from meshtrain.run.terminal import wrapped


def text(plan: Serving) -> str:
    """The whole plan."""
    lines = ["SERVING with vLLM", ""]
    for decision in plan.decisions:
        lines += wrapped(decision, "      ", "    ")
    lines += [
        "",
        "  vllm serve MODEL \\",
        *(f"    {flag} \\" for flag in plan.flags[:-1]),
        f"    {plan.flags[-1]}",
        "",
        f"  weights      {size_text(plan.weights)} a GPU",
        f"  KV cache     {size_text(plan.room)} a GPU, {size_text(plan.cache_per_token)} a token:"
        f" {plan.tokens:,} tokens in each copy of the model",
        f"  concurrent   {plural(plan.sequences, 'sequence')} of {plan.length:,} tokens,"
        f" all {plural(plan.data, 'copy')} together",
    ]
    return "\n".join(lines)


def as_json(plan: Serving) -> dict[str, Any]:
    """The plan as plain JSON values."""
    return dataclasses.asdict(plan) | {"flags": list(plan.flags), "tokens": plan.tokens}
