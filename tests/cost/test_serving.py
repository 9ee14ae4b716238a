"""vLLM's sizes by the order of THEORY: one GPU, one node, nodes as stages; no fast links; room for the cache."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.quantity import Bytes
from meshtrain.cost.serving import cache_bytes, serve
from meshtrain.errors import InputError
from meshtrain.model.config import LatentConfig
from meshtrain.model.flops import count_parameters
from meshtrain.run.cluster_file import read_cluster
from tests.cost.memory_cases import model_of

CLUSTERS = Path(__file__).parents[2] / "configs" / "clusters"


def cluster(name: str) -> Cluster:
    return read_cluster(str(CLUSTERS / f"{name}.py"))


@pytest.mark.parametrize(
    ("model", "machine", "gpus", "sizes"),
    [
        ("llama3_8b", "h100_roce", 8, (1, 1, 8)),  # fits one GPU: replicas
        ("llama3_70b", "h100_roce", 8, (8, 1, 1)),  # fits one node
        ("llama3_405b", "h100_roce", 16, (8, 2, 1)),  # two servers
        ("llama3_405b", "h100_roce", 32, (8, 2, 2)),
        ("llama3_70b", "l40s_pcie", 8, (1, 4, 2)),  # no fast links: stages
    ],
)
def test_the_sizes(model: str, machine: str, gpus: int, sizes: tuple[int, int, int]) -> None:
    plan = serve(model_of(model, 8192), cluster(machine), gpus, 8192)
    assert (plan.tensor, plan.pipeline, plan.data) == sizes
    assert plan.tensor * plan.pipeline * plan.data == gpus
    assert f"--tensor-parallel-size {sizes[0]}" in plan.flags
    assert plan.sequences >= 1
    assert plan.room > 0


def test_two_gpus_beat_one_that_only_just_fits() -> None:
    small = replace(cluster("h100_roce"), memory=Bytes(22e9))
    plan = serve(model_of("llama3_8b", 8192), small, 2, 8192)  # 16 GB of weights in 20 GB
    assert plan.tensor == 2
    assert any("times the" in decision for decision in plan.decisions)
    roomy = serve(model_of("llama3_8b", 8192), cluster("h100_roce"), 2, 8192)
    assert (roomy.tensor, roomy.data) == (1, 2)


def test_the_cache_of_a_token() -> None:
    model = model_of("llama3_8b", 8192)
    assert [cache_bytes(model, tensor) for tensor in (1, 2, 8, 16)] == [4096, 2048, 512, 512]  # 8 key heads of 128
    latent = replace(
        model, num_kv_heads=32, head_dim=192, latent=LatentConfig(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    )
    assert cache_bytes(latent, 8) == (512 + 64) * 2  # the latent and the rotated key, whole on each part


def test_the_room_by_hand() -> None:
    """Llama 3 405B on 16 H100: 811.7 GB of weights in 16 parts; 63 layers on each, one key head of 128 each."""
    plan = serve(model_of("llama3_405b", 8192), cluster("h100_roce"), 16, 8192)
    weights = 405_853_388_800 * 2 / 16
    batched = 8192 * (2 * 53248 / 8 + 4 * 16384) * 2
    assert plan.weights == pytest.approx(weights)
    assert plan.room == pytest.approx(0.9 * 80e9 - weights - batched)
    assert plan.cache_per_token == 63 * 2 * 1 * 128 * 2 == 32256
    assert plan.tokens == int(plan.room / 32256)
    assert plan.sequences == plan.tokens // 8192 == 75


def test_experts_are_dealt_out_over_tensor_and_data() -> None:
    """Mixtral 8x7B: a node holds it; two copies in one deployment share the experts out."""
    model = model_of("mixtral_8x7b", 8192)
    experts = 32 * 8 * 3 * 4096 * 14336
    others = count_parameters(model) - experts
    one = serve(model, cluster("h100_roce"), 8, 8192)
    assert (one.tensor, one.pipeline, one.data, one.expert_parallel) == (8, 1, 1, True)
    assert one.weights == pytest.approx((others + experts) * 2 / 8)
    two = serve(model, cluster("h100_roce"), 16, 8192)
    assert (two.tensor, two.data) == (8, 2)
    assert two.weights == pytest.approx((others + experts / 2) * 2 / 8)
    assert "--enable-expert-parallel" in two.flags
    assert two.sequences > 2 * one.sequences
    assert "--enable-expert-parallel" not in serve(model_of("llama3_70b", 8192), cluster("h100_roce"), 8, 8192).flags


def test_a_latent_cache_wants_data_in_place_of_tensor() -> None:
    """DeepSeek-V3: a tensor part holds the whole cache of a token (512 + 64 numbers a layer), so eight hold it eight
    times; attention is replicated instead, and experts are dealt out all the same."""
    plan = serve(model_of("deepseek_v3", 8192), cluster("h200_ib"), 16, 8192)
    assert plan.tensor * plan.data * plan.pipeline == 16
    assert plan.data > 1
    assert plan.cache_per_token == -(-61 // plan.pipeline) * 576 * 2
    assert any("the cache of a token is" in decision for decision in plan.decisions)


def test_too_large_a_model() -> None:
    with pytest.raises(InputError, match="weights 812 GB of 576 GB in all"):
        serve(model_of("llama3_405b", 8192), cluster("h100_roce"), 8, 8192)
