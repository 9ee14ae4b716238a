"""The order of decisions on published runs and on machines that ask for another way, each with its inequality."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from meshtrain.cost.choice import AxisNames, Choice, Sizes
from meshtrain.cost.decisions import Outcome, decide
from meshtrain.cost.search import Search, Task, check_nodes
from meshtrain.errors import InputError
from meshtrain.layout import Layout, place_abstract
from meshtrain.run.cluster_file import read_cluster
from meshtrain.step import OptimizerConfig, Precision, StepConfig
from tests.cost.memory_cases import model_of

CLUSTERS = Path(__file__).parents[2] / "configs" / "clusters"
NAMES = AxisNames("a", "b", "c", "d")  # names are free


@cache
def task(model: str, cluster: str, gpus: int, batch: int, length: int) -> Task:
    config = StepConfig(model_of(model, length), OptimizerConfig(), Precision("bfloat16"))
    return Task(config, batch, length, False, read_cluster(str(CLUSTERS / f"{cluster}.py")), gpus, NAMES)


@cache
def outcome(model: str, cluster: str, gpus: int, batch: int, length: int) -> Outcome:
    return decide(Search(task(model, cluster, gpus, batch, length)))


def said(found: Outcome) -> str:
    return "\n".join(text for decision in found.decisions for text in decision.found)


def test_llama3_405b_at_8k_is_laid_out_as_published() -> None:
    found = outcome("llama3_405b", "h100_roce", 16384, 2048, 8192)
    sizes = found.best.choice.sizes
    assert (sizes.tensor, sizes.context) == (8, 1)
    assert 8 <= sizes.stage <= 32
    assert sizes.data * sizes.stage * sizes.tensor == 16384
    assert "0.125 rows for each GPU < 1" in said(found)
    assert "weights and gradients are waited for" in said(found)  # why ZeRO-3 with tensor parallelism is not enough


def test_llama3_405b_at_128k_cuts_rows_outside_of_tensor() -> None:
    found = outcome("llama3_405b", "h100_roce", 16384, 128, 131072)
    sizes = found.best.choice.sizes
    assert sizes.tensor == 8
    assert sizes.context > 1
    assert 8 <= sizes.stage <= 32
    assert list(found.best.choice.layout(NAMES)["mesh"])[-2:] == ["c", "d"]  # context outside of tensor
    assert "stages are idle" in said(found)


def test_the_search_takes_seconds() -> None:
    begun = time.process_time()
    decide(Search(task("llama3_405b", "h100_roce", 16384, 2048, 8192)))
    assert time.process_time() - begun < 20  # under 10 on a free core


def test_a_small_model_is_data_parallel() -> None:
    found = outcome("small", "h100_roce", 8, 64, 2048)
    assert found.best.choice.sizes == Sizes(8, 1, 1, 1)
    assert found.best.choice.zero == 0
    assert [decision.number for decision in found.decisions] == [1]


def test_zero_comes_before_tensor() -> None:
    found = outcome("llama3_8b", "h100_roce", 8, 128, 8192)
    assert found.best.choice.sizes == Sizes(8, 1, 1, 1)
    assert found.best.choice.zero > 0
    assert "> 73.6 GB usable" in said(found)


def test_two_servers_together_are_tensor_8_and_2_stages() -> None:
    """One row at a time, and a state (1.13 TB) that one server (8 x 141 GB) does not hold."""
    found = outcome("llama3_70b", "h200_ib", 16, 1, 8192)
    assert (found.best.choice.sizes.tensor, found.best.choice.sizes.stage) == (8, 2)
    assert "< 1" in said(found)
    with pytest.raises(InputError, match="too much"):
        outcome("llama3_70b", "h200_ib", 8, 1, 8192)


def test_without_fast_links_there_are_stages() -> None:
    found = outcome("llama3_8b", "l40s_pcie", 16, 8, 8192)
    assert found.best.choice.sizes.tensor == 1
    assert found.best.choice.sizes.stage > 1
    assert "no fast links" in said(found)


def test_what_cannot_fit_says_by_how_much_and_what_helps() -> None:
    with pytest.raises(InputError, match=r"GB too much. What would help: --gpus"):
        outcome("llama3_405b", "h100_roce", 16, 16, 8192)


def test_devices_that_do_not_factor() -> None:
    cluster = task("small", "h100_roce", 8, 64, 2048).cluster
    with pytest.raises(InputError, match=r"12 GPUs are no whole number of nodes of 8.*8 or 16 would work"):
        check_nodes(cluster, 12)
    with pytest.raises(InputError, match="do not factor into a mesh"):
        _ = Search(replace(task("small", "h100_roce", 8, 64, 2048), num_devices=37)).sizes


def test_a_choice_is_a_layout_that_can_be_placed() -> None:
    choice = Choice(Sizes(2, 2, 2, 2), 1, "names", 4, "interleaved", 2)
    layout = choice.layout(NAMES)
    place = place_abstract(Layout.parse(layout, "found"), 16)
    assert place.axis_sizes == dict(a=2, b=2, c=2, d=2)
    assert layout["attention"] == "gather"
    assert layout["optimizer"] == {"embed": ("a", "c")}
    assert layout["pipeline"] == dict(schedule="interleaved", microbatches=4, repeats=2)
    alone = Choice(Sizes(4, 1, 1, 1), 3, "full", 8).layout(NAMES)
    assert alone["params"] == {"embed": "a"}
    assert alone["accumulate"] == 8
