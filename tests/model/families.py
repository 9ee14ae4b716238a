"""Tiny configs with the features of each family, batches of packed documents, and weights that are all non-trivial."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import ArraySpec, path_name
from meshtrain.model import LatentConfig, ModelConfig, MoEConfig, RopeScaling, describe

SIZES: dict[str, Any] = dict(
    num_layers=2, embed=16, num_heads=4, num_kv_heads=2, head_dim=6, mlp=20, vocab=29, max_length=32
)
LLAMA = ModelConfig(**SIZES, rope_scaling=RopeScaling("llama3", 8.0, original_length=16))
QWEN2 = ModelConfig(**SIZES, attention_bias=True, tied=True, norm_eps=1e-6)
QWEN3 = ModelConfig(**SIZES, qk_norm=True, rope_scaling=RopeScaling("yarn", 4.0, original_length=16))
MISTRAL = ModelConfig(**SIZES, window=5)
GEMMA2 = ModelConfig(
    **SIZES,
    activation="geglu",
    norm_plus_one=True,
    post_norms=True,
    query_scale=0.3,
    attention_softcap=2.0,
    logit_softcap=3.0,
    window=4,
    window_layers=(True, False),
    embed_scale=4.0,
    tied=True,
)
GPT2 = ModelConfig(
    **{**SIZES, "num_kv_heads": 4},
    norm="layer",
    activation="gelu",
    positions="learned",
    mlp_bias=True,
    attention_bias=True,
    attention_output_bias=True,
    tied=True,
)
LATENT = LatentConfig(query_rank=9, kv_rank=7, nope_dim=6, rope_dim=4, value_dim=5)
DEEPSEEK = ModelConfig(
    **{**SIZES, "num_kv_heads": 4, "head_dim": 10},
    latent=LATENT,
    rope_scaling=RopeScaling("yarn", 8.0, original_length=16, mscale=1.0, mscale_all_dim=0.7),
)
DEEPSEEK_LITE = ModelConfig(
    **{**SIZES, "num_kv_heads": 4, "head_dim": 10}, latent=replace(LATENT, query_rank=None, value_dim=13), norm_eps=1e-6
)
MIXTRAL = ModelConfig(**SIZES, moe=MoEConfig(num_experts=4, top_k=2, mlp=10))
GROUPED = ModelConfig(
    **{**SIZES, "num_layers": 3},
    moe=MoEConfig(
        num_experts=8, top_k=3, mlp=6, router="sigmoid", scaling=2.5, num_groups=4, top_groups=2, bias=True,
        num_shared=2, first_dense=1,
    ),
)  # fmt: skip
INTERLEAVED = ModelConfig(
    **{**SIZES, "num_layers": 5},
    activation="gelu",
    moe=MoEConfig(num_experts=6, top_k=1, mlp=6, normalized=False, num_groups=3, top_groups=2, first_dense=1, every=2),
)
FAMILIES = dict(
    llama=LLAMA, qwen2=QWEN2, qwen3=QWEN3, mistral=MISTRAL, gemma2=GEMMA2, gpt2=GPT2, deepseek=DEEPSEEK,
    deepseek_lite=DEEPSEEK_LITE, mixtral=MIXTRAL, grouped=GROUPED, interleaved=INTERLEAVED,
)  # fmt: skip


def make_params(config: ModelConfig, seed: int = 0) -> dict[str, Any]:
    """Weights of deviation 0.3 on every element, around 1 for plain scales: no scale is 1 and no bias is 0."""
    rng = np.random.default_rng(seed)

    def numbers(path: tuple[Any, ...], spec: ArraySpec) -> jax.Array:
        middle = 1.0 if path_name(path).endswith("scale") and not config.norm_plus_one else 0.0
        return jnp.asarray(middle + 0.3 * rng.normal(size=spec.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(numbers, describe(config), is_leaf=lambda x: isinstance(x, ArraySpec))


def make_batch(config: ModelConfig, documents: list[list[int]], length: int, seed: int = 0) -> dict[str, jax.Array]:
    """One row for each list of document lengths, padded to `length`; labels are the next token of the same document."""
    rng = np.random.default_rng(seed)
    rows = len(documents)
    tokens = rng.integers(0, config.vocab, (rows, length), dtype=np.int32)
    labels, positions, segments = (np.zeros((rows, length), np.int32) for _ in range(3))
    labels[:] = -1
    for row, lengths in enumerate(documents):
        start = 0
        for number, size in enumerate(lengths, 1):
            stop = start + size
            labels[row, start : stop - 1] = tokens[row, start + 1 : stop]
            positions[row, start:stop] = np.arange(size)
            segments[row, start:stop] = number
            start = stop
    arrays = dict(tokens=tokens, labels=labels, positions=positions, segments=segments)
    return {**{k: jnp.asarray(v) for k, v in arrays.items()}, "index_B": jnp.arange(rows, dtype=jnp.int32)}
