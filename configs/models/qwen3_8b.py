"""Qwen3 8B: 8,190,735,360 parameters. q/k norm, no biases, output matrix of its own.

Source: the published config.json of Qwen3-8B (Qwen3 Technical Report, 2025); max_length is that of pre-training.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=36,
            embed=4096,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            mlp=12288,
            vocab=151936,
            max_length=32768,
            norm_eps=1e-6,
            qk_norm=True,
            rope_theta=1000000.0,
        )
    )
