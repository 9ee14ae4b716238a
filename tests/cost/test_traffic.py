"""The planned traffic of a step is the theory's: 2 P for DDP, ZeRO-1 and ZeRO-2, 3 P for ZeRO-3, Megatron's sums.

What the compiler makes of it is held against these figures by the golden ledgers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic import predict_traffic
from meshtrain.layout import Layout, place_abstract
from meshtrain.model import ModelConfig, MoEConfig
from meshtrain.model.flops import count_parameters
from meshtrain.run import config_file
from meshtrain.step import Precision, StepConfig

MODEL = ModelConfig(
    num_layers=8, embed=512, num_heads=16, num_kv_heads=8, head_dim=64, mlp=1408, vocab=8192, max_length=1024
)
BF16, N, BATCH, LENGTH = 2, 16, 64, 1024
LAYOUTS = Path(__file__).parents[2] / "configs" / "layouts"


def traffic(name: str, changes: Mapping[str, Any] | None = None) -> list[Collective]:
    values = config_file.read(str(LAYOUTS / f"{name}.py"), "layout").values
    layout = Layout.parse({**values, **(changes or {})}, name)
    step = StepConfig(MODEL, precision=Precision("bfloat16"))
    return predict_traffic(step, place_abstract(layout, N), global_batch=BATCH, length=LENGTH)


def wire(found: list[Collective], *kinds: str) -> float:
    return sum(one.wire_bytes for one in found if not kinds or one.kind in kinds)


@pytest.mark.parametrize(("name", "times"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_zero(name: str, times: int) -> None:
    """In units of P bytes of what is sent, (N - 1) / N of it; ZeRO-3 gathers tables but once (norms are too small)."""
    parameters = count_parameters(MODEL)
    tables = 2 * MODEL.vocab * MODEL.embed
    units = (times * parameters - (tables if name == "zero3" else 0)) * BF16 * (N - 1) / N
    assert wire(traffic(name)) == pytest.approx(units, rel=0.002)  # sums of norm scales are float32


def test_accumulation_reduces_once_or_each_time() -> None:
    """DDP and ZeRO-1 once a step (in float32, as they are summed); ZeRO-2 and ZeRO-3 in each microbatch."""
    four = dict(accumulate=4)
    assert wire(traffic("ddp", four)) == pytest.approx(2 * wire(traffic("ddp")), rel=0.002)
    scatters = wire(traffic("zero2"), "reduce_scatter")
    assert wire(traffic("zero2", four), "reduce_scatter") == pytest.approx(4 * scatters)
    assert wire(traffic("zero3", four)) == pytest.approx(4 * wire(traffic("zero3")))


def test_tensor_parallelism() -> None:
    """Two all-reduces of [batch, length, embed] a layer forward and two backward, and one at each table."""
    hidden = BATCH // 4 * LENGTH * MODEL.embed * BF16
    sums = [one for one in traffic("tensor") if one.axes == ("tensor",) and one.bytes == hidden]
    assert {one.kind for one in sums} == {"all_reduce"}
    assert sum(one.count for one in sums) == 4 * MODEL.num_layers + 2
    cut = [one for one in traffic("tensor_sequence") if one.axes == ("tensor",) and one.bytes == hidden]
    counts: Counter[str] = Counter()
    for one in cut:
        counts[one.kind] += one.count
    assert counts == {"all_gather": 4 * MODEL.num_layers + 2, "reduce_scatter": 4 * MODEL.num_layers + 2}


def test_pipelines_send_every_tick() -> None:
    """GPipe, 2 stages, 4 microbatches: 4 ticks forward, since the last piece is run by its backward op alone.
    Interleaving by 2 sends at least twice as often."""
    counts = {one.why: one.count for one in traffic("pipeline_gpipe") if one.kind == "permute"}
    assert counts["output of a piece"] == 4
    assert counts["gradient of its input"] >= 4
    twice = {one.why: one.count for one in traffic("pipeline_interleaved") if one.kind == "permute"}
    assert twice["output of a piece"] >= 2 * 4


def test_rings_and_swaps() -> None:
    """A ring of 4 sends keys and values 3 times forward and 3 times backward, and their gradients 4 times."""
    ring = {one.why: one for one in traffic("context_ring_zigzag") if one.kind == "permute"}
    keys = BATCH // 4 * LENGTH // 4 * MODEL.num_kv_heads * MODEL.head_dim * BF16
    assert ring["keys and values"].count == 3 * MODEL.num_layers
    assert ring["keys and values"].bytes == 2 * keys
    assert (ring["their gradients"].count, ring["their gradients"].bytes) == (4 * MODEL.num_layers, 4 * keys)
    swaps = [one for one in traffic("context_ulysses") if one.kind == "all_to_all"]
    assert sum(one.count for one in swaps) == 2 * 4 * MODEL.num_layers


def test_experts_out_and_back() -> None:
    """Every pair of a token and an expert goes out and back, forward and backward, over the axis of the experts."""
    model = replace(MODEL, moe=MoEConfig(num_experts=16, top_k=2, mlp=256))
    values = config_file.read(str(LAYOUTS / "expert.py"), "layout").values
    step = StepConfig(model, precision=Precision("bfloat16"))
    place = place_abstract(Layout.parse(values), N)
    all_of_them = predict_traffic(step, place, global_batch=BATCH, length=LENGTH)
    found = [one for one in all_of_them if one.kind == "all_to_all" and "tokens" in one.why]
    pairs = 2 * BATCH * LENGTH // N
    assert {(one.kind, one.axes, one.bytes) for one in found} == {
        ("all_to_all", ("expert",), pairs * MODEL.embed * BF16)
    }
    assert sum(one.count for one in found) == 4 * MODEL.num_layers
    (counts,) = (one for one in all_of_them if one.why.startswith("counts"))
    assert (counts.axes, counts.bytes, counts.count) == (("expert",), 4 * 16 * 4, MODEL.num_layers)  # int32, 4 devices


def test_nothing_is_sent_on_one_device() -> None:
    values = config_file.read(str(LAYOUTS / "zero3.py"), "layout").values
    place = place_abstract(Layout.parse(values), 1)
    assert predict_traffic(StepConfig(MODEL), place, global_batch=BATCH, length=LENGTH) == []
