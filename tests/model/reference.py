"""A decoder in plain numpy float64, written from the definitions, token by token where that is clearer.

It shares no code with the package but the config, so that what both compute the same is computed right.
"""

import math
from typing import Any

import numpy as np

from meshtrain.model import ModelConfig

Arrays = dict[str, Any]


def loss(params: Arrays, config: ModelConfig, batch: Arrays) -> float:
    """Sum of -log p(label) over the counted tokens."""
    x = hidden(params, config, batch)
    table = params["embedding" if config.tied else "output"]["table"]
    logits = x @ table.T
    if config.logit_softcap:
        logits = config.logit_softcap * np.tanh(logits / config.logit_softcap)
    logits -= logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    rows, places = np.nonzero(batch["labels"] >= 0)
    return float(-log_p[rows, places, batch["labels"][rows, places]].sum())


def hidden(params: Arrays, config: ModelConfig, batch: Arrays) -> np.ndarray:
    """States after the final norm, [B, T, D]."""
    rows = []
    for tokens, positions, segments in zip(batch["tokens"], batch["positions"], batch["segments"], strict=True):
        x = params["embedding"]["table"][tokens] * config.embed_scale
        if config.positions == "learned":
            x = x + params["positions"]["table"][positions]
        for i in range(config.num_layers):
            layer = layer_weights(params, config, i)
            windowed = config.window_layers[i % len(config.window_layers)]
            window = config.window if windowed and config.window else 10**9
            h = norm(x, layer["attention_norm"], config)
            y = attention(layer["attention"], config, h, positions, segments, window)
            x = x + (norm(y, layer["attention_post_norm"], config) if config.post_norms else y)
            h = norm(x, layer["mlp_norm"], config)
            y = experts(layer["moe"], config, h, segments) if config.is_moe(i) else mlp(layer["mlp"], config, h)
            x = x + (norm(y, layer["mlp_post_norm"], config) if config.post_norms else y)
        rows.append(norm(x, params["final_norm"], config))
    return np.stack(rows)


def norm(x: np.ndarray, weights: Arrays, config: ModelConfig, kind: str | None = None) -> np.ndarray:
    scale = weights["scale"] + (1 if config.norm_plus_one else 0)
    if (kind or config.norm) == "layer":
        centered = x - x.mean(-1, keepdims=True)
        return centered / np.sqrt(centered.var(-1, keepdims=True) + config.norm_eps) * scale + weights["bias"]
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * scale


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def mlp(weights: Arrays, config: ModelConfig, x: np.ndarray) -> np.ndarray:
    up = x @ weights["up"] + weights.get("up_bias", 0)
    if config.activation == "gelu":
        h = gelu(up)
    else:
        gate = x @ weights["gate"] + weights.get("gate_bias", 0)
        h = (gate / (1 + np.exp(-gate)) if config.activation == "swiglu" else gelu(gate)) * up
    return h @ weights["down"] + weights.get("down_bias", 0)


def experts(weights: Arrays, config: ModelConfig, x: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Each token through each of its experts, one by one."""
    out = np.zeros_like(x)
    for i, token in enumerate(x):
        if segments[i] > 0:
            for expert, weight in route(weights["router"], config, token):
                out[i] += weight * mlp(_slice(weights["experts"], expert), config, token[None])[0]
        if "shared" in weights:
            out[i] += mlp(weights["shared"], config, token[None])[0]
    return out


def route(weights: Arrays, config: ModelConfig, token: np.ndarray) -> list[tuple[int, float]]:
    """(expert, weight) of a token, best first; of equal scores the lower expert."""
    moe = config.moe
    assert moe is not None
    logits = token @ weights["weight"]
    scores = 1 / (1 + np.exp(-logits)) if moe.router == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
    chosen_by = scores + weights.get("bias", 0)
    size = moe.num_experts // moe.num_groups
    groups = [sorted(chosen_by[g * size : (g + 1) * size], reverse=True) for g in range(moe.num_groups)]
    best = [sum(group[: 2 if moe.router == "sigmoid" else 1]) for group in groups]
    open_groups = sorted(range(moe.num_groups), key=lambda g: -best[g])[: moe.top_groups]
    candidates = [e for e in range(moe.num_experts) if e // size in open_groups]
    chosen = sorted(candidates, key=lambda e: -chosen_by[e])[: moe.top_k]
    total = scores[chosen].sum() if moe.normalized else 1.0
    return [(e, moe.scaling * scores[e] / total) for e in chosen]


def layer_weights(params: Arrays, config: ModelConfig, layer: int) -> Arrays:
    if config.moe is None:
        return _slice(params["layers"], layer)
    number = sum(config.is_moe(before) for before in range(layer))
    if config.is_moe(layer):
        return _slice(params["layers"], number)
    return _slice(params["dense_layers"], layer - number)


def attention(
    weights: Arrays, config: ModelConfig, x: np.ndarray, positions: np.ndarray, segments: np.ndarray, window: int
) -> np.ndarray:
    if config.latent is not None:
        return latent_attention(weights, config, x, positions, segments)
    q, k, v = (
        np.einsum("td,dnh->tnh", x, weights[name]) + weights.get(f"{name}_bias", 0)
        for name in ("query", "key", "value")
    )
    if config.qk_norm:
        q, k = norm(q, weights["query_norm"], config, "rms"), norm(k, weights["key_norm"], config, "rms")
    if config.positions == "rotary":
        q, k = rotate(q, positions, config), rotate(k, positions, config)
    scale = config.query_scale or 1 / math.sqrt(config.head_dim)
    out = np.zeros_like(q)
    for i in range(len(x)):
        seen = [
            j for j in range(len(x)) if segments[i] == segments[j] > 0 and 0 <= positions[i] - positions[j] < window
        ]
        if not seen:
            continue
        for n in range(config.num_heads):
            g = n // (config.num_heads // config.num_kv_heads)
            scores = k[seen, g] @ q[i, n] * scale
            if config.attention_softcap:
                scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
            p = np.exp(scores - scores.max())
            out[i, n] = p / p.sum() @ v[seen, g]
    return np.einsum("tnh,nhd->td", out, weights["output"]) + weights.get("output_bias", 0)


def latent_attention(
    weights: Arrays, config: ModelConfig, x: np.ndarray, positions: np.ndarray, segments: np.ndarray
) -> np.ndarray:
    """DeepSeek-V2, 2024, equations 37 to 47, head by head and query by query; rotations as complex numbers."""
    latent, scaling = config.latent, config.rope_scaling
    assert latent is not None
    freq, factor = rope(config)
    turn = np.exp(1j * positions[:, None] * np.asarray(freq)) * factor  # [T, rope_dim / 2]

    def turned(y: np.ndarray) -> np.ndarray:
        z = (y[:, 0::2] + 1j * y[:, 1::2]) * turn
        return np.stack([z.real, z.imag], axis=-1).reshape(y.shape)

    scale = 1 / math.sqrt(latent.nope_dim + latent.rope_dim)
    if scaling is not None and scaling.mscale_all_dim:
        scale *= (0.1 * scaling.mscale_all_dim * math.log(scaling.factor) + 1) ** 2
    c_kv = norm(x @ weights["kv_down"], weights["kv_norm"], config, "rms")
    k_rope = turned(x @ weights["key_rope"])
    summed = np.zeros_like(x)
    for n in range(config.num_heads):
        if latent.query_rank is None:
            q = x @ weights["query"][:, n]
        else:
            q = norm(x @ weights["query_down"], weights["query_norm"], config, "rms") @ weights["query_up"][:, n]
        q_nope, q_rope = q[:, : latent.nope_dim], turned(q[:, latent.nope_dim :])
        k_nope, v = c_kv @ weights["key_up"][:, n], c_kv @ weights["value_up"][:, n]
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if segments[i] == segments[j] > 0 and positions[j] <= positions[i]]
            if seen:
                scores = (k_nope[seen] @ q_nope[i] + k_rope[seen] @ q_rope[i]) * scale
                p = np.exp(scores - scores.max())
                summed[i] += (p / p.sum() @ v[seen]) @ weights["output"][n]
    return summed


def rotate(x: np.ndarray, positions: np.ndarray, config: ModelConfig) -> np.ndarray:
    freq, factor = rope(config)
    half = config.head_dim // 2
    turned = np.empty_like(x)
    for i in range(half):
        c, s = np.cos(positions * freq[i]) * factor, np.sin(positions * freq[i]) * factor
        a, b = x[..., i], x[..., half + i]
        turned[..., i] = a * c[:, None] - b * s[:, None]
        turned[..., half + i] = b * c[:, None] + a * s[:, None]
    return turned


def rope(config: ModelConfig) -> tuple[list[float], float]:
    """Frequencies and attention factor, pair by pair, in the form of transformers' modeling_rope_utils."""
    dim, base, s = config.head_dim, config.rope_theta, config.rope_scaling
    dim = dim if config.latent is None else config.latent.rope_dim
    freq = [1 / base ** (2 * i / dim) for i in range(dim // 2)]
    if s is None:
        return freq, 1.0
    if s.kind == "linear":
        return [f / s.factor for f in freq], 1.0
    old = s.original_length
    assert old is not None
    if s.kind == "llama3":
        found = []
        for f in freq:
            wavelength = 2 * math.pi / f
            if wavelength < old / s.high_freq_factor:
                found.append(f)
            elif wavelength > old / s.low_freq_factor:
                found.append(f / s.factor)
            else:
                smooth = (old / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
                found.append((1 - smooth) * f / s.factor + smooth * f)
        return found, 1.0

    def correction(turns: float) -> float:
        return dim * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = correction(s.beta_fast), correction(s.beta_slow)
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = high + 0.001 if low == high else high
    ramp = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
    found = [f / s.factor * r + f * (1 - r) for f, r in zip(freq, ramp, strict=True)]

    def get_mscale(mscale: float) -> float:
        return 1.0 if s.factor <= 1 else 0.1 * mscale * math.log(s.factor) + 1.0

    if s.attention_factor is not None:
        return found, s.attention_factor
    if s.mscale and s.mscale_all_dim:
        return found, get_mscale(s.mscale) / get_mscale(s.mscale_all_dim)
    return found, get_mscale(1.0)


def _slice(tree: Arrays, i: int) -> Arrays:
    return {k: _slice(v, i) if isinstance(v, dict) else v[i] for k, v in tree.items()}
