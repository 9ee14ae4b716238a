"""The figures of the theory come out of the code: the tensor table, bubbles, balance, published layouts."""

import math
from pathlib import Path
from typing import Any

import pytest

from meshtrain.cost.bubble import Pieces, pipeline_time
from meshtrain.cost.links import rank_groups, strides, wire
from meshtrain.cost.quantity import GB_per_s, Gbit_per_s, TFLOP_per_s
from meshtrain.cost.split import split_of
from meshtrain.cost.tables import tensor_table
from meshtrain.layout import Layout, MeshShape, Placement, place_abstract
from meshtrain.model import ModelConfig
from meshtrain.parallel.attention.balance import balance
from meshtrain.parallel.pipeline import ideal_idle, schedule
from meshtrain.run import config_file
from meshtrain.run.schema import build
from tests.cost.clusters import cluster, ideal

CONFIGS = Path(__file__).parents[2] / "configs"


def model(name: str, **changes: Any) -> ModelConfig:
    return build(ModelConfig, config_file.read(str(CONFIGS / "models" / f"{name}.py"), "").values | changes, "model")


def placed(name: str, num_devices: int, **changes: Any) -> Placement:
    values = config_file.read(str(CONFIGS / "layouts" / f"{name}.py"), "").values
    merged = {key: {**values[key], **new} if isinstance(new, dict) else new for key, new in changes.items()}
    return place_abstract(Layout.parse(values | merged), num_devices)


def test_tensor_table() -> None:
    """Section 3, one layer of Llama 3 405B over 8,192 tokens at 400 TFLOP/s, to 1 %."""
    nvlink, roce = GB_per_s(450), Gbit_per_s(400)
    cases = [(1, nvlink), (2, nvlink), (4, nvlink), (8, nvlink), (8, roce), (16, roce)]
    rows = tensor_table(model("llama3_405b"), 8192, cases, TFLOP_per_s(400))
    expected = [
        (130.66, 0, 0), (65.33, 1.19, 1.8), (32.67, 1.79, 5.2), (16.33, 2.09, 11.3), (16.33, 18.79, 53.5),
        (8.17, 20.13, 71.1),
    ]  # fmt: skip
    for row, (compute, exchange, share) in zip(rows, expected, strict=True):
        assert row.compute * 1e3 == pytest.approx(compute, rel=0.01)
        assert row.exchange * 1e3 == pytest.approx(exchange, rel=0.01)
        assert row.share * 100 == pytest.approx(share, rel=0.01, abs=0.05)  # given to one decimal
    sixteen = split_of(
        placed("tensor", 16, mesh=dict(data=1, tensor=16)), model("llama3_405b"), 1, 8192, cluster("h100_roce")
    )
    assert wire(sixteen.tensor, cluster("h100_roce")).link == "network"  # more than the 8 GPUs with NVLink


@pytest.mark.parametrize(
    ("p", "m", "v", "percent"),
    [(4, 16, 1, 15.79), (4, 8, 1, 27.27), (16, 16, 1, 48.39), (16, 16, 8, 10.49), (8, 64, 1, 9.86), (2, 8, 1, 11.11)],
)
def test_bubble(p: int, m: int, v: int, percent: float) -> None:
    """Section 4: (p-1)/(v m + p-1), exactly, from the schedule's table; also through the time model."""
    exact = (p - 1) / (v * m + p - 1)
    assert round(exact * 100, 2) == percent
    for name in ["interleaved"] if v > 1 else ["gpipe", "1f1b"]:
        assert ideal_idle(schedule(name, p, m, v)) == pytest.approx(exact, rel=1e-12)
        pieces = Pieces((1.0,) * p * v, (1.0,) * p * v, (1.0,) * p * v)
        found = pipeline_time(name, p, m, pieces)
        assert found.bubble == pytest.approx(exact, rel=1e-12)
        assert found.seconds == pytest.approx(found.work / (1 - exact), rel=1e-12)


def test_activations_in_flight_and_zero_bubble() -> None:
    """Section 4: GPipe holds m, 1F1B at most p; ZB-H1's bubble is about a third at 1F1B's memory."""
    p, m = 4, 16
    assert schedule("gpipe", p, m).live.max() == m
    assert schedule("1f1b", p, m).live.max() == p
    assert schedule("zb_h1", p, m).live.max() == p
    ratio = ideal_idle(schedule("zb_h1", p, m)) / ideal_idle(schedule("1f1b", p, m))
    assert 0.25 < ratio < 0.45


def test_balance() -> None:
    """Section 5: 16 x 16 blocks over 4 devices."""
    contiguous = placed("context_ring", 4, mesh=dict(data=1, context=4))
    zigzag = placed("context_ring_zigzag", 4, mesh=dict(data=1, context=4))
    assert balance(contiguous, 4096, None) == [10, 26, 42, 58]
    assert balance(zigzag, 4096, None) == [34, 34, 34, 34]
    h100, llama = cluster("h100_roce"), model("llama3_8b")
    assert split_of(contiguous, llama, 4, 4096, h100).imbalance == pytest.approx(58 / 34)
    assert split_of(zigzag, llama, 4, 4096, h100).imbalance == 1


@pytest.mark.parametrize(
    ("name", "gpus", "data", "context", "length", "batch_per_data"),
    [
        ("llama3_405b_8k", 8192, 64, 1, 8192, 32),
        ("llama3_405b_8k", 16384, 128, 1, 8192, 16),
        ("llama3_405b_128k", 16384, 8, 16, 131072, 16),
    ],
)
def test_llama_3(name: str, gpus: int, data: int, context: int, length: int, batch_per_data: int) -> None:
    """Section 6: GPUs = TP x CP x PP x DP, 16,777,216 tokens a step, 16 heads and one key head a GPU."""
    place = placed(name, gpus, pipeline=dict(microbatches=batch_per_data))
    split = split_of(place, model("llama3_405b"), data * batch_per_data, length, cluster("h100_roce"))
    assert (split.tensor.size, split.ring.size, split.num_stages, split.batch_parts) == (8, context, 16, data)
    assert math.prod((8, context, 16, data)) == gpus == split.num_devices
    assert split.global_batch * length == 16_777_216
    assert (split.microbatch, split.num_microbatches) == (1, batch_per_data)
    assert 128 // split.cuts["heads"] == 16
    assert 8 // split.cuts["kv_heads"] == 1
    assert sum(split.pieces) == 126
    assert wire(split.tensor, ideal("h100_roce")).link == "fast"
    assert {wire(group, ideal("h100_roce")).link for group in (split.stage, split.reduce)} == {"network"}


def test_rank_order() -> None:
    """Section 6: [TP, CP, PP, DP], TP fastest, read off the published layout's own mesh; of size 2 each, rank = tp + 2
    cp + 4 pp + 8 dp."""
    mesh = MeshShape({"dp": 2, "pp": 2, "cp": 2, "tp": 2}).resolve(16)
    assert strides(mesh) == dict(dp=8, pp=4, cp=2, tp=1)
    assert rank_groups(mesh, ["tp"])[0] == [0, 1]
    assert rank_groups(mesh, ["dp"])[0] == [0, 8]
    sizes = placed("llama3_405b_128k", 16384).axis_sizes
    dp, pp, cp, tp = sizes
    assert rank_groups(sizes, [tp])[0] == list(range(8))
    assert rank_groups(sizes, [cp])[0] == list(range(0, 128, 8))
    assert rank_groups(sizes, [pp])[0] == list(range(0, 2048, 128))
    assert rank_groups(sizes, [dp])[0] == list(range(0, 16384, 2048))


def test_deepseek_v3() -> None:
    """Section 7: 2,048 GPUs are PP 16 x EP 64 over 8 nodes x ZeRO-1 data parallelism, without tensor parallelism;
    expert parallelism takes its devices from data parallelism and never multiplies the count."""
    place = placed("deepseek_v3", 2048)
    config = model("deepseek_v3", max_length=4096, rope_scaling=None)
    split = split_of(place, config, 15360, 4096, ideal("h100_roce"))
    assert (split.num_stages, split.experts.size, split.tensor.size, split.zero_stage) == (16, 64, 1, 1)
    assert split.num_stages * split.batch_parts == 2048
    assert split.batch_parts == split.zero.size == 128
    assert split.copies is not None
    assert split.copies.size == 2  # each expert is held twice in a stage
    assert [wire(hop, ideal("h100_roce")).link for hop in split.hops] == ["network", "fast"]
    assert [hop.size for hop in split.hops] == [8, 8]  # inside its node first, then to one of 8 nodes
    assert config.moe is not None
    assert config.moe.num_experts // split.cuts["expert"] == 4


def test_other_published_layouts() -> None:
    """Section 7: what their axes multiply up to."""
    assert MeshShape({"data": -1, "inner": 8}).resolve(512)["data"] == 64
    rows_columns = placed("rows_columns", 512, mesh=dict(rows=32, columns=16))
    assert rows_columns.num_devices == 512
    dgx2 = cluster("dgx2_v100")
    megatron = split_of(
        placed("tensor", 512, mesh=dict(data=-1, tensor=8)),
        model("gpt2_1b5", num_heads=32, num_kv_heads=32, head_dim=96, embed=3072, mlp=12288, num_layers=72),
        512,
        1024,
        dgx2,
    )
    assert (megatron.tensor.size, megatron.batch_parts) == (8, 64)
    assert wire(megatron.tensor, dgx2).link == "fast"
