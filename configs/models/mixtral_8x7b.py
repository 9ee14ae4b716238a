"""Mixtral 8x7B: 46,702,792,704 parameters, of which a token meets 12,879,925,248 (2 of 8 experts in each layer).

Source: the published config.json of Mixtral-8x7B-v0.1 (Mixtral of Experts, 2024); balance_loss is its
router_aux_loss_coef.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=32,
            embed=4096,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            mlp=14336,
            vocab=32000,
            max_length=32768,
            norm_eps=1e-5,
            rope_theta=1000000.0,
            moe=dict(num_experts=8, top_k=2, mlp=14336, balance_loss=0.02),
        )
    )
