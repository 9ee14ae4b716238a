"""The quickstart's model with experts: as many active parameters as `tiny`, and 8 experts of which a token uses 2.

Each expert is half as wide as `tiny`'s MLP, so a token meets as many weights there, and four times as many are stored.
Experts divide by 2, 4 and 8.
"""

from ml_collections import ConfigDict

from configs.models import tiny


def get_config() -> ConfigDict:
    config = tiny.get_config()
    config.moe = ConfigDict(
        dict(num_experts=8, top_k=2, mlp=352, balance_loss=0.01, z_loss=0.001),
    )
    return config
