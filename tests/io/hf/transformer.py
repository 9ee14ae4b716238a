"""Tiny models of transformers with random weights, saved as folders: like published ones, without a download."""

import functools
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SIZES: dict[str, Any] = dict(
    vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GPT2 = dict(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)
DEFAULT = dict(rope_type="default", rope_theta=1e4)
DEEPSEEK = dict(
    n_routed_experts=8, n_group=4, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=16, kv_lora_rank=8,
    qk_rope_head_dim=4, v_head_dim=10, qk_nope_head_dim=8, first_k_dense_replace=1, num_hidden_layers=3,
    num_key_value_heads=4,
)  # fmt: skip
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


@dataclass(frozen=True)
class Case:
    """A model of transformers: its class's stem, its config, and how many tokens are compared (2x the original length).

    old: rope_theta and rope_scaling as they stood in config.json before transformers 5, put in the place of the new.
    """

    stem: str
    config: dict[str, Any]
    length: int = 32
    old: dict[str, Any] = field(default_factory=dict)
    shards: bool = False
    bare: bool = False


# The spellings of one rotation that are not here mean the same model: see test_config.py.
CASES = {
    "llama": Case("Llama", SIZES | dict(head_dim=10, rope_parameters=dict(rope_type="default", rope_theta=5e5))),
    "llama3_biased": Case(
        "Llama",
        SIZES
        | dict(attention_bias=True, mlp_bias=True, rope_parameters=dict(rope_type="llama3", rope_theta=1e4, **LLAMA3)),
        shards=True,
    ),
    "llama_linear_tied": Case(
        "Llama",
        SIZES | dict(tie_word_embeddings=True),
        old=dict(rope_theta=2e4, rope_scaling=dict(type="linear", factor=2.0)),
        length=64,
    ),
    "mistral": Case("Mistral", SIZES | dict(sliding_window=7, head_dim=12), length=64, shards=True),
    "qwen2": Case(
        "Qwen2",
        SIZES
        | dict(
            tie_word_embeddings=True,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=2.0, original_max_position_embeddings=16, beta_fast=4.0
            ),
        ),
    ),
    "qwen2_window": Case(
        "Qwen2",
        SIZES | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1),
        old=dict(
            rope_theta=1e4,
            rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=1.1),
        ),
    ),
    "qwen3": Case("Qwen3", SIZES | dict(head_dim=16, attention_bias=True), length=64),
    "gemma2": Case(
        "Gemma2",
        SIZES | dict(head_dim=16, sliding_window=6, query_pre_attn_scalar=24, num_hidden_layers=4, pad_token_id=None),
        length=64,
        shards=True,
    ),
    "mixtral": Case(
        "Mixtral",
        SIZES | dict(num_local_experts=4, num_experts_per_tok=2, rope_parameters=DEFAULT),
        length=64,
        shards=True,
    ),
    "qwen3_moe": Case(
        "Qwen3Moe",
        SIZES
        | dict(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=2, norm_topk_prob=True,
            num_hidden_layers=4, rope_parameters=DEFAULT, head_dim=8,
        ),
        length=64,
    ),
    "deepseek_v3": Case("DeepseekV3", SIZES | DEEPSEEK | dict(q_lora_rank=12), length=64, shards=True),
    "deepseek_v3_plain_queries": Case(
        "DeepseekV3",
        SIZES
        | DEEPSEEK
        | dict(
            q_lora_rank=None,
            rope_parameters=dict(
                rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=16, mscale=0.7,
                mscale_all_dim=1.0,
            ),
        ),
        length=32,
    ),
    "gpt2": Case("GPT2", GPT2),
    "gpt2_bare": Case("GPT2", GPT2 | dict(n_inner=48), bare=True),
}  # fmt: skip


def library() -> Any:
    """transformers on PyTorch; the test is skipped where they are not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch", reason="needs PyTorch")
        return pytest.importorskip("transformers", reason="needs transformers")


def quietly(function: Callable[[], Any]) -> Any:
    """What the function gives; a library's own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function()


def save(case: Case, model: Any, folder: Path) -> None:
    """The model as `save_pretrained` writes it, in as many files as the case says."""
    saved = model.transformer if case.bare else model
    quietly(lambda: saved.save_pretrained(folder, max_shard_size="20KB" if case.shards else "1GB"))


@functools.cache
def make(name: str) -> tuple[Any, Path]:
    """A case's model, float32, no weight left at its start, and the folder that it was saved in."""
    import torch

    case, transformers = CASES[name], library()
    model = getattr(transformers, f"{case.stem}ForCausalLM" if case.stem != "GPT2" else "GPT2LMHeadModel")
    config = getattr(transformers, f"{case.stem}Config")
    folder = Path(tempfile.mkdtemp(prefix=f"hf_{name}_"))
    torch.manual_seed(0)
    made = quietly(lambda: model(config(**case.config)).eval())
    with torch.no_grad():
        for weight in made.parameters():
            weight += 0.1 * torch.randn_like(weight)
        for buffer_name, buffer in made.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer += 0.1 * torch.randn_like(buffer)
    save(case, made, folder)
    if case.old:
        values = json.loads((folder / "config.json").read_text())
        del values["rope_parameters"]
        (folder / "config.json").write_text(json.dumps(values | case.old))
        made = quietly(lambda: model.from_pretrained(folder).eval())
    return made, folder
