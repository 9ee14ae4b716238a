"""Qwen3-30B-A3B: 30,532,122,624 parameters, of which a token meets 3,353,032,704 (8 of 128 experts in each layer).

Source: the published config.json of Qwen3-30B-A3B (Qwen3 Technical Report, 2025); balance_loss is its
router_aux_loss_coef, max_length that of pre-training.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=48,
            embed=2048,
            num_heads=32,
            num_kv_heads=4,
            head_dim=128,
            mlp=6144,  # of dense layers, of which it has none
            vocab=151936,
            max_length=32768,
            norm_eps=1e-6,
            qk_norm=True,
            rope_theta=1000000.0,
            moe=dict(num_experts=128, top_k=8, mlp=768, balance_loss=0.001),
        )
    )
