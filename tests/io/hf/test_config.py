"""config.json and ModelConfig: every key is read, known to be irrelevant, or an error; and back again."""

import json
from typing import Any

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.hf.family import IRRELEVANT
from meshtrain.io.hf.known import FAMILIES
from meshtrain.model import ModelConfig, RopeScaling
from meshtrain.model.rotary import frequencies
from tests.io.hf.transformer import library

# Published values of keys that say nothing here are part of each: they must be known.
LLAMA3 = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=128000,
    eos_token_id=[128001, 128008, 128009], hidden_act="silu", hidden_size=4096, initializer_range=0.02,
    intermediate_size=14336, max_position_embeddings=131072, mlp_bias=False, model_type="llama",
    num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-5,
    rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192,
                      rope_type="llama3"),
    rope_theta=500000.0, tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.42.3",
    use_cache=True, vocab_size=128256,
)  # fmt: skip
TINY = dict(
    model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    vocab_size=97, max_position_embeddings=64,
)  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {
    "default": dict(rope_type="default"),
    "linear": dict(rope_type="linear", factor=4.0),
    "llama3": dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    ),
    "yarn": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "yarn_attention": dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.3, beta_fast=16.0,
        beta_slow=2.0, truncate=False,
    ),
    "yarn_mscale": dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.7, mscale_all_dim=1.1
    ),
}  # fmt: skip


OTHERS = TINY | {"num_key_value_heads": 4}


def read(**changes: Any) -> ModelConfig:
    return FAMILIES["llama"].model(TINY | changes, "config.json")


def spelled(kind: str, spelling: str) -> dict[str, Any]:
    """A scaling in one of the ways in which files spell it."""
    said = SCALINGS[kind]
    if spelling == "parameters":
        return {"rope_parameters": said | {"rope_theta": 2e4}}
    if spelling == "type":
        said = {("type" if key == "rope_type" else key): value for key, value in said.items()}
    return {"rope_theta": 2e4, "rope_scaling": None if kind == "default" else said}


def test_a_published_config_is_read_whole_and_comes_back() -> None:
    family = FAMILIES["llama"]
    model = family.model(LLAMA3, "config.json")
    assert (model.num_layers, model.head_dim, model.num_kv_heads, model.vocab) == (32, 128, 8, 128256)
    assert model.rope_scaling == RopeScaling("llama3", 8.0, 8192, 1.0, 4.0)
    assert family.config(model, LLAMA3, "config.json") == LLAMA3
    # Only what changed is written anew.
    longer = family.config(family.model(LLAMA3 | {"max_position_embeddings": 262144}, ""), LLAMA3, "config.json")
    assert longer == LLAMA3 | {"max_position_embeddings": 262144}


@pytest.mark.parametrize("kind", SCALINGS)
def test_each_spelling_of_a_rotation_means_the_same_and_is_what_transformers_computes(kind: str) -> None:
    models = [read(**spelled(kind, spelling)) for spelling in ("parameters", "scaling", "type")]
    assert models[0] == models[1] == models[2]
    family = FAMILIES["llama"]
    for spelling in ("parameters", "scaling", "type"):
        start = TINY | spelled(kind, spelling)
        assert family.config(models[0], start, "config.json") == start | {"architectures": ["LlamaForCausalLM"]}
    assert family.model(family.config(models[0], None, "new"), "new") == models[0]
    library = pytest.importorskip("transformers", reason="needs transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = library.LlamaConfig(**{**TINY, **spelled(kind, "parameters")})
    ours, factor = frequencies(models[0])
    if kind == "default":
        theirs, wanted = 2e4 ** -(np.arange(0, 16, 2) / 16), 1.0
    else:
        found, wanted = ROPE_INIT_FUNCTIONS[SCALINGS[kind]["rope_type"]](config, "cpu")
        theirs = found.double().numpy()
    assert np.abs(ours / theirs - 1).max() < 1e-6
    assert factor == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (dict(rope_scaling=dict(type="dynamic", factor=2.0)), ["rope_scaling", "'dynamic'"]),
        (dict(rope_parameters=dict(rope_type="longrope", rope_theta=1e4)), ["rope_parameters", "'longrope'"]),
        (dict(rope_scaling=dict(type="linear", factor=2.0, alpha=1.0)), ["rope_scaling", "'alpha'"]),
        (dict(rope_scaling=dict(type="linear")), ["rope_scaling", "'factor'"]),
        (dict(rope_scaling=dict(rope_type="llama3", factor=8.0)), ["rope_scaling", "'low_freq_factor'"]),
        (dict(rope_scaling=dict(type="yarn", rope_type="linear", factor=2.0)), ["rope_scaling"]),
        (dict(rope_scaling=dict(type="linear", factor=0.5)), ["factor", "0.5"]),
        (
            dict(rope_scaling=dict(type="linear", factor=2.0), rope_parameters=dict(rope_type="default")),
            ["rope_scaling", "rope_parameters"],
        ),
        (dict(rope_parameters=dict(full_attention=dict(rope_type="default"))), ["rope_parameters", "flat"]),
        (dict(partial_rotary_factor=0.5), ["partial_rotary_factor"]),
        (dict(hidden_act="relu"), ["hidden_act", "'relu'", "'silu'"]),
        (dict(multiplier=2.0), ["multiplier", "2.0"]),
        (dict(attention_bais=True), ["attention_bais", "'attention_bias'"]),
        (dict(num_key_value_heads=3), ["num_kv_heads"]),
        (dict(num_attention_heads=5), ["num_attention_heads", "64"]),
        (dict(hidden_size="64"), ["hidden_size", "'64'"]),
        (dict(vocab_size=61.5), ["vocab_size", "61.5"]),
        (dict(num_hidden_layers=None), ["num_hidden_layers", "None"]),
        (dict(tie_word_embeddings="yes"), ["tie_word_embeddings", "'yes'"]),
        (dict(rms_norm_eps=[1]), ["rms_norm_eps"]),
        (dict(rope_theta="big"), ["rope_theta", "'big'"]),
        (dict(rope_scaling="linear"), ["rope_scaling", "flat"]),
        (dict(rope_scaling=dict(type="linear", factor="4")), ["rope_scaling", "factor"]),
        (dict(rope_scaling=dict(type="linear", factor=float("nan"))), ["rope_scaling", "factor=nan"]),
        (dict(rope_scaling=dict(type="linear", factor=True)), ["rope_scaling", "factor=True", "a number"]),
        (dict(rope_scaling=dict(type="yarn", original_max_position_embeddings=0)), ["rope_scaling", "by zero"]),
        (dict(rope_theta=float("inf")), ["rope_theta", "inf", "a number"]),
        (dict(rms_norm_eps=float("nan")), ["rms_norm_eps", "nan", "a number"]),
        (dict(rms_norm_eps=10**400), ["rms_norm_eps", "a number"]),
        (dict(head_dim="16"), ["head_dim='16'", "a whole number"]),
        (dict(head_dim=16.0), ["head_dim=16.0", "a whole number"]),
        (dict(head_dim=None, num_attention_heads=0), ["num_attention_heads=0"]),
        (dict(num_key_value_heads=2.0), ["num_kv_heads=2.0", "a whole number"]),
        (dict(num_key_value_heads=True), ["num_kv_heads=True", "a whole number"]),
        (dict(is_encoder_decoder=True), ["is_encoder_decoder"]),
        (dict(pruned_heads={"0": [1]}), ["pruned_heads"]),
    ],
)
def test_what_cannot_be_honoured_is_an_error(changes: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(InputError) as error:
        read(**changes)
    assert all(text in str(error.value) for text in ["config.json", *expected]), error.value


def test_a_missing_size_is_an_error_and_a_missing_default_is_the_familys() -> None:
    with pytest.raises(InputError, match="vocab_size"):
        FAMILIES["llama"].model({key: value for key, value in TINY.items() if key != "vocab_size"}, "config.json")
    assert read().num_kv_heads == 4
    assert read().norm_eps == 1e-6
    assert read(num_key_value_heads=None, head_dim=None, rope_scaling=None).head_dim == 16
    gemma = FAMILIES["gemma2"].model(TINY | {"model_type": "gemma2", "head_dim": 32}, "config.json")
    assert (gemma.tied, gemma.attention_softcap, gemma.logit_softcap, gemma.window) == (True, 50.0, 30.0, 4096)
    assert gemma.window_layers == (True, False)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_layers_without_end_are_refused_and_not_counted(model_type: str) -> None:
    sizes = OTHERS if model_type != "gpt2" else {"n_embd": 32, "n_head": 4}
    for number in (100_001, 10**30):
        with pytest.raises(InputError, match=f"{number} layers are more than any model has"):
            FAMILIES[model_type].model(sizes | {"num_hidden_layers": number, "n_layer": number}, "config.json")


def test_what_a_family_cannot_say_is_an_error() -> None:
    with pytest.raises(InputError, match="qk_norm=True"):
        FAMILIES["llama"].config(FAMILIES["qwen3"].model(OTHERS, ""), None, "config.json")
    with pytest.raises(InputError, match="window"):
        FAMILIES["llama"].config(FAMILIES["mistral"].model(OTHERS, ""), None, "config.json")


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1, num_hidden_layers=4)),
        ("qwen2", dict(use_sliding_window=False, sliding_window=8, max_window_layers=1)),
        ("qwen3", dict(layer_types=["sliding_attention", "full_attention"], use_sliding_window=True, sliding_window=8)),
        ("gemma2", dict(sliding_window=8, layer_types=["full_attention", "sliding_attention"])),
        ("gemma2", dict(query_pre_attn_scalar=144, final_logit_softcapping=None)),
        ("mistral", dict(sliding_window=None)),
        ("mixtral", dict(num_local_experts=4)),
    ],
)
def test_windows_and_scales_come_back(model_type: str, changes: dict[str, Any]) -> None:
    family = FAMILIES[model_type]
    model = family.model(OTHERS | changes, "config.json")
    written = json.loads(json.dumps(family.config(model, None, "new")))
    assert family.model(written, "new") == model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_key_of_the_librarys_own_configs_is_decided(model_type: str) -> None:
    """Each is read, irrelevant by name, or must have one value: another value is another model, or an error."""
    library()
    from transformers import CONFIG_MAPPING

    family, kind = FAMILIES[model_type], CONFIG_MAPPING[model_type]
    values = json.loads(kind().to_json_string(use_diff=False))
    assert family.model(values, "config.json")
    values.pop("layer_types", None)  # without it the other keys of windows say which layers have one
    if model_type in ("qwen2", "qwen3"):
        values |= dict(use_sliding_window=True, sliding_window=64, max_window_layers=4)
    model = family.model(values, "config.json")
    declared = {name for parent in kind.__mro__ for name in getattr(parent, "__annotations__", {})}
    said = {name for name in declared if not str(kind.__annotations__.get(name, "")).startswith("ClassVar")}
    keys = (set(values) | said) - IRRELEVANT - set(family.irrelevant) - NOT_KEYS
    silent = [key for key in sorted(keys) if not _another(family, values, key, model)]
    # The dropout of attention is not done here, and is known not to be.
    assert set(silent) <= {"attn_pdrop"}, silent


# Annotations of the library's classes that are no keys of a file.
NOT_KEYS = {
    "base_config_key", "sub_configs", "sub_configs_defaults", "keys_to_ignore_at_inference", "attribute_map",
    "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan", "base_model_fsdp_plan", "has_no_defaults_at_init",
    "extra_files", "extra_config_files", "default_theta",
}  # fmt: skip


def _another(family: Any, values: dict[str, Any], key: str, model: ModelConfig) -> bool:
    """Whether some other value of the key is another model, or refused."""
    for value in (7, True, False, 0.5, "other", [1], None):
        try:
            if values.get(key) != value and family.model(values | {key: value}, "config.json") != model:
                return True
        except InputError:
            return True
    return False
