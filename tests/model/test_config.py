"""ModelConfig: the model files count what was published, and bad values are errors that name the field."""

import importlib
from dataclasses import fields
from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.layout import DIMS, named_specs
from meshtrain.model import ModelConfig, RopeScaling, count_parameters, describe, model_flops_per_token
from meshtrain.model.flops import attention_flops_per_token, count_active_parameters, matrix_parameters
from meshtrain.run.schema import build
from tests.model.families import FAMILIES, SIZES

PUBLISHED = dict(
    llama3_8b=8_030_261_248,
    llama3_70b=70_553_706_496,
    llama3_405b=405_853_388_800,
    qwen3_8b=8_190_735_360,
    mixtral_8x7b=46_702_792_704,
    qwen3_30b_a3b=30_532_122_624,
    deepseek_v3=671_026_419_200,
    gpt2_1b5=1_557_611_200,
    tiny=4_000_000,
)
ACTIVE = dict(mixtral_8x7b=12.9e9, qwen3_30b_a3b=3.3e9, deepseek_v3=37e9)


def load(name: str) -> dict[str, Any]:
    return importlib.import_module(f"configs.models.{name}").get_config().to_dict()


def model(name: str) -> ModelConfig:
    return build(ModelConfig, load(name), "model")


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_file_counts_its_published_parameters(name: str) -> None:
    assert count_parameters(model(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_that_a_token_meets(name: str) -> None:
    """Published figures have two or three digits, and some leave the embedding table out."""
    config = model(name)
    found, expected = count_active_parameters(config), ACTIVE.get(name, PUBLISHED[name])
    assert found - config.vocab * config.embed <= 1.005 * expected
    assert found >= 0.995 * expected
    # a training step is 6 FLOPs for each of them, but for the table that is only looked up, and for attention
    flops = model_flops_per_token(config, 1) / 6
    assert flops == pytest.approx(found - (not config.tied) * config.vocab * config.embed, rel=2e-3)


def test_deepseek_counts_by_hand() -> None:
    """Report, section 4.2: 7168 wide, 128 heads, latents 1536 and 512, 3 dense layers, 256 experts, 8 and 1 active."""
    attention = 7168 * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    expert = 3 * 7168 * 2048
    matrices = 61 * attention + 3 * 3 * 7168 * 18432 + 58 * (7168 * 256 + 9 * expert) + 129280 * 7168
    assert matrix_parameters(model("deepseek_v3")) == matrices


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_file_has_only_the_fields_of_the_config(name: str) -> None:
    assert set(load(name)) <= {field.name for field in fields(ModelConfig)}


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_every_weight_declares_known_dims_of_weights(config: ModelConfig) -> None:
    for path, spec in named_specs(describe(config)):
        assert all(DIMS[dim].weight for dim in spec.dims), path
        assert ("layers" in spec.dims) == path.startswith("layers/"), path


def test_flops_of_a_llama_by_hand() -> None:
    config = ModelConfig(**{**SIZES, "vocab": 10})
    # q and output 16 x 4 x 6, k and v 16 x 2 x 6, three MLP matrices 16 x 20, twice; output matrix 16 x 10
    assert matrix_parameters(config) == 2 * (2 * 384 + 2 * 192 + 3 * 320) + 160
    # 2 layers; scores and values, 2 FLOPs a multiply-add, 4 heads of 6, half of 10 keys
    assert attention_flops_per_token(config, 10) == 2 * 2 * 2 * 24 * 5
    assert model_flops_per_token(config, 10) == 3 * (2 * 4384 + 960)


def test_flops_count_a_window_and_ignore_biases_and_position_rows() -> None:
    window = ModelConfig(**SIZES, window=4, window_layers=(True, False))
    full = ModelConfig(**SIZES)
    # one layer of two: (10 x 4 - 4 x 4 / 2) / 10 = 3.2 keys instead of 5
    assert attention_flops_per_token(window, 10) == pytest.approx(attention_flops_per_token(full, 10) * (5 + 3.2) / 10)
    assert attention_flops_per_token(window, 3) == attention_flops_per_token(full, 3)
    gpt2 = FAMILIES["gpt2"]
    assert matrix_parameters(gpt2) == 2 * (4 * 384 + 2 * 320) + 16 * 29


BAD: list[tuple[dict[str, Any], list[str]]] = [
    (dict(num_kv_heads=3), ["model.num_kv_heads", "4 query heads", "3 key and", "num_kv_heads=2 would work"]),
    (dict(num_layers=0), ["model.num_layers", "0"]),
    (dict(vocab=True), ["model.vocab"]),
    (dict(norm="rmsnorm"), ["model.norm", "'rmsnorm'", "Did you mean 'rms'?"]),
    (dict(activation="swigluu"), ["model.activation", "Did you mean 'swiglu'?"]),
    (dict(positions="alibi"), ["model.positions", "rotary, learned"]),
    (dict(head_dim=7), ["model.head_dim", "7 is odd", "head_dim=8 would work"]),
    (dict(window=0), ["model.window"]),
    (dict(window=4, window_layers=(True, False, False)), ["model.window_layers", "3 layers", "must divide 2"]),
    (dict(window_layers=()), ["model.window_layers"]),
    (dict(dropout=1.0), ["model.dropout", "1.0", "0.1 would work"]),
    (dict(norm_eps=0.0), ["model.norm_eps", "1e-05 is the default"]),
    (dict(logit_softcap=-1.0), ["model.logit_softcap", "-1.0", "None"]),
    (dict(positions="learned", rope_scaling=RopeScaling("linear", 2.0)), ["model.rope_scaling", "no rotation"]),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[" ".join(change) for change, _ in BAD])
def test_bad_value_is_an_error_that_names_it(change: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InputError) as error:
        ModelConfig(**{**SIZES, **change})
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (dict(kind="yarnn", factor=2.0), "Did you mean 'yarn'?"),
        (dict(kind="linear", factor=0.5), "at least 1.0"),
        (dict(kind="yarn", factor=2.0), "original_length"),
        (dict(kind="llama3", factor=2.0, original_length=64, low_freq_factor=4.0), "high_freq_factor"),
        (dict(kind="yarn", factor=2.0, original_length=64, beta_slow=64.0), "beta_fast"),
        (dict(kind="yarn", factor=2.0, original_length=0), "original_length"),
    ],
)
def test_bad_rope_scaling_is_an_error(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        RopeScaling(**values)
    assert said in str(error.value)
    assert "model.rope_scaling" in str(error.value)
