"""A Llama-style model of 4e6 parameters, to learn on and to test with on a CPU. Its sizes divide by 2, 4 and 8."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=4,
            embed=256,
            num_heads=8,
            num_kv_heads=4,
            head_dim=32,
            mlp=704,
            vocab=4096,
            max_length=512,
            tied=True,
        )
    )
