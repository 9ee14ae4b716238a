"""The order of decisions on published runs and on machines that ask for another way, each with its inequality."""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from meshtrain.cost.choice import AxisNames, Choice, Experts, Sizes, dealt
from meshtrain.cost.decisions import Outcome, decide
from meshtrain.cost.search import Search, Task, check_nodes
from meshtrain.cost.split import split_of
from meshtrain.cost.verdict import waiting
from meshtrain.errors import InputError
from meshtrain.layout import Layout, place_abstract
from meshtrain.run.cluster_file import read_cluster
from meshtrain.run.inventory import check_run
from meshtrain.step import OptimizerConfig, Precision, StepConfig
from tests.cost.memory_cases import model_of

CLUSTERS = Path(__file__).parents[2] / "configs" / "clusters"
NAMES = AxisNames("a", "b", "c", "d", "e", "n")  # names are free


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


def test_the_piece_with_the_first_dense_layers_gets_fewer_others() -> None:
    """DeepSeek-V3: 3 dense layers and 58 with experts, on 16 pieces of at most 4 layers, on 32 of 2 behind 3."""
    model = model_of("deepseek_v3", 4096)
    for number, first, most in ((16, 1, 4), (32, 0, 2)):
        layers = dealt(model, number)
        assert layers is not None
        assert (len(layers), sum(layers), layers[0], max(layers)) == (number, 58, first, most)
        layout = Choice(Sizes(1, number, 1, 1), schedule="1f1b", layers=layers).layout(NAMES)
        place = place_abstract(Layout.parse(layout, "found"), number)
        split = split_of(place, model, 8, 4096, read_cluster(str(CLUSTERS / "h100_roce.py")))
        assert (split.pieces[0], max(split.pieces[1:]), sum(split.pieces)) == (3 + first, most, 61)
    assert dealt(model_of("llama3_8b", 4096), 16) is None


def test_experts_are_dealt_out_where_they_do_not_fit() -> None:
    """DeepSeek-V3: with whole copies of the experts stages only just hold it; dealt out inside the fast links it is
    smaller and faster, and over the network their tokens would be waited for. Each is said with its numbers."""
    found = outcome("deepseek_v3", "h100_roce", 2048, 15360, 4096)
    last = found.decisions[-1]
    assert (last.number, last.title) == (6, "Where do the experts live?")
    assert [decision.number for decision in found.decisions if decision.taken] == [4, 6]
    assert "experts have 97% of the parameters" in last.found[0]
    assert "experts' tokens are waited for" in last.found[-1]
    assert "just fits" in found.decisions[3].found[0]
    choice = found.best.choice
    assert choice.experts is not None
    assert choice.expert_parts == 8
    assert choice.experts.nodes == 1
    assert choice.sizes.stage > 1
    place = place_abstract(Layout.parse(choice.layout(NAMES), "found"), 2048)
    assert place.num_shards("expert", "use") == choice.expert_parts


def test_experts_stay_where_dealing_them_out_is_no_faster() -> None:
    """Qwen3-30B-A3B: narrow experts, of which a token meets 8: the way to them costs more than ZeRO-3's gathers."""
    found = outcome("qwen3_30b_a3b", "h100_roce", 64, 1024, 4096)
    assert found.decisions[-1].number == 6
    assert found.best.choice.expert_parts == 1
    assert "experts stay with the other weights" in said(found)


def test_experts_are_dealt_out_where_it_is_faster() -> None:
    """Mixtral 8x7B: wide experts, of which a token meets 2."""
    found = outcome("mixtral_8x7b", "h100_roce", 64, 1024, 4096)
    assert found.best.choice.expert_parts == 8
    assert found.best.choice.experts == Experts(8, 1, False, 1.25)


def test_a_buffer_without_capacity_is_not_taken_lightly() -> None:
    """Compiled for H100s, all of its rows meet all experts of a device."""
    search = Search(task("small_moe", "h100_roce", 8, 64, 4096))
    whole, dropless, capacity = (
        Choice(Sizes(8, 1, 1, 1), experts=experts) for experts in (None, Experts(8), Experts(8, capacity=1.25))
    )
    assert "times what the model asks for" in waiting(whole, search.time(whole))
    assert "times what the model asks for" in waiting(dropless, search.time(dropless))
    assert "times what" not in waiting(capacity, search.time(capacity))
    small = outcome("tiny_moe", "h100_roce", 8, 64, 512)  # rows shorter than what context would leave of them
    assert small.best.choice.experts is not None
    assert small.best.choice.experts.capacity == 1.25


def test_a_choice_of_experts_is_a_layout_that_can_be_placed() -> None:
    own = Choice(Sizes(8, 2, 1, 2), 1, microbatches=4, schedule="1f1b", experts=Experts(4, 2, False, 1.25))
    layout = own.layout(NAMES)
    assert layout["mesh"] == dict(a=2, b=2, n=2, e=2, d=2)
    assert layout["rules"]["batch"] == ("a", "n", "e")
    assert layout["rules"]["expert"] == ("n", "e")
    assert layout["optimizer"] == dict(embed=("a", "n", "e"), expert_embed="a")
    assert layout["experts"] == dict(dispatch="capacity", capacity_factor=1.25)
    with_tensor = Choice(Sizes(4, 1, 1, 2), 3, experts=Experts(4, 1, True)).layout(NAMES)
    assert with_tensor["mesh"] == dict(a=4, d=2)  # folded on data
    assert with_tensor["rules"]["expert"] == ("a", "d")
    assert with_tensor["rules"]["expert_mlp"] is None
    assert with_tensor["params"] == dict(embed="a", expert_embed=None)
    for values, devices in ((layout, 32), (with_tensor, 8)):
        step = task("small_moe", "h100_roce", devices, 64, 4096).config
        findings = check_run(step, 64, 4096, place_abstract(Layout.parse(values), devices))[1]
        assert not [finding for finding in findings if finding.severity == "error"]
