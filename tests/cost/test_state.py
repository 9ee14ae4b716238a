"""Bytes of the state: the published table from the closed form, and the closed form against the real arrays."""

import pytest

from meshtrain.cost.state import PerParameter, per_parameter, state_bytes
from meshtrain.layout import Layout, place_abstract
from meshtrain.model import ModelConfig
from meshtrain.model.flops import count_parameters
from meshtrain.step import OptimizerConfig, Precision, StepConfig

# What papers count with: 16-bit weights and gradients; float32 master, first and second moment.
PUBLISHED = PerParameter(2, 2, 12)
# The ZeRO paper's way of counting: GB per device (Rajbhandari et al. 2020, figure 1, and the same at 405e9).
TABLE = [
    (405e9, 64, [6480, 1695.94, 898.59, 101.25]),
    (405e9, 512, [6480, 1629.49, 821.07, 12.66]),
    (7.5e9, 64, [120, 31.41, 16.64, 1.88]),
]
ROWS: list[dict[str, dict[str, str]]] = [
    {}, dict(optimizer=dict(embed="data")), dict(grads=dict(embed="data")), dict(params=dict(embed="data")),
]  # fmt: skip

MODEL = ModelConfig(
    num_layers=4, embed=256, num_heads=8, num_kv_heads=4, head_dim=32, mlp=768, vocab=4096, max_length=512
)  # fmt: skip


@pytest.mark.parametrize(("parameters", "shards", "gigabytes"), TABLE)
def test_the_published_table(parameters: float, shards: int, gigabytes: list[float]) -> None:
    found = [PUBLISHED.state_bytes(parameters, stage, shards) / 1e9 for stage in range(4)]
    assert found == pytest.approx(gigabytes, rel=1e-3, abs=0.0051)  # they are given to two decimals
    assert PUBLISHED.total * 405e9 == pytest.approx(6.48e12)
    assert PUBLISHED.total * 1.5e9 == 24e9  # GPT-2
    assert PUBLISHED.params * 1.5e9 == 3e9
    assert PUBLISHED.total * 405e9 / 80e9 == pytest.approx(81)  # devices of 80 GB that hold 405e9 parameters


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("stage", range(4))
def test_the_closed_form_is_what_the_arrays_take(compute: str, stage: int) -> None:
    config = StepConfig(MODEL, OptimizerConfig(), Precision(compute))
    layout = Layout.parse({"mesh": {"data": 16}, "rules": {"batch": "data"}, **ROWS[stage]})
    counted = sum(state_bytes(config, place_abstract(layout, 16)).values())
    constants = per_parameter(config)
    size = 2 if compute == "bfloat16" else 4
    assert (constants.params, constants.grads) == (size, size)
    assert constants.optimizer == pytest.approx(12, rel=1e-4)
    assert counted == pytest.approx(constants.state_bytes(count_parameters(MODEL), stage, 16), rel=1e-3)
    assert counted != pytest.approx(constants.state_bytes(count_parameters(MODEL), (stage + 1) % 4, 16), rel=1e-3)


def test_sums_of_microbatches_are_float32() -> None:
    config = StepConfig(MODEL, OptimizerConfig(), Precision("bfloat16"))
    assert (per_parameter(config).grads, per_parameter(config, accumulate=2).grads) == (2, 4)
