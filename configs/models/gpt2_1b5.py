"""GPT-2 1.5B (gpt2-xl): 1,557,611,200 parameters. Learned positions, LayerNorm, biases everywhere, tied.

Source: Radford et al. 2019, table 2, and the published config.json (vocab 50,257, 1,024 positions, dropout 0.1).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=48,
            embed=1600,
            num_heads=25,
            num_kv_heads=25,
            head_dim=64,
            mlp=6400,
            vocab=50257,
            max_length=1024,
            norm="layer",
            activation="gelu",
            mlp_bias=True,
            attention_bias=True,
            attention_output_bias=True,
            positions="learned",
            tied=True,
            dropout=0.1,
        )
    )
