"""Predicted memory against what the compiler for H100s says (tests/goldens/memory.json), step by step."""

import json
from functools import cache
from importlib.util import find_spec

import pytest

from meshtrain.cost.memory import Memory, predict_memory
from meshtrain.layout import place_abstract
from tests.cost.memory_cases import CASES, GOLDEN, layout_of

GOLDENS: dict[str, dict[str, int]] = json.loads(GOLDEN.read_text())
TOLERANCE = 0.05


def compiled_peak(name: str) -> int:
    found = GOLDENS[name]
    return found["argument"] + found["output"] - found["alias"] + found["temp"]


@cache
def predicted(name: str, quick: bool = False) -> Memory:
    case = CASES[name]
    place = place_abstract(layout_of(case), case.gpus)
    return predict_memory(case.config(), place, case.batch, case.length, packed=case.packed, quick=quick)


def errors() -> dict[str, float]:
    return {name: predicted(name).peak / compiled_peak(name) - 1 for name in GOLDENS if name in CASES}
