"""Llama 3 405B: 405,853,388,800 parameters.

Source: The Llama 3 Herd of Models (2024), table 3; norm_eps and rope_theta as in the published files. These are the
sizes of pre-training at 8,192 tokens; Llama 3.1 adds rope_scaling of kind llama3 (factor 8, original_length 8192).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=126,
            embed=16384,
            num_heads=128,
            num_kv_heads=8,
            head_dim=128,
            mlp=53248,
            vocab=128256,
            max_length=8192,
            rope_theta=500000.0,
        )
    )
