"""DeepSeek-V3: 671,026,419,200 parameters, of which a token meets 37,552,297,472 (1 shared and 8 of 256 experts).

Without the module that predicts a second token ahead: meshtrain has none (it is 14e9 parameters more, and is left out
when the model is used). Source: the published config.json of DeepSeek-V3 and the DeepSeek-V3 Technical Report (2024),
sections 2.1 and 4.2. rope_scaling is that of the published 128K model; pre-training at 4,096 has none.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            num_layers=61,
            embed=7168,
            num_heads=128,
            num_kv_heads=128,
            head_dim=192,
            mlp=18432,  # of the first three layers
            vocab=129280,
            max_length=163840,
            norm_eps=1e-6,
            init_std=0.006,
            latent=dict(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128),
            rope_scaling=dict(kind="yarn", factor=40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0),
            moe=dict(
                num_experts=256,
                top_k=8,
                mlp=2048,
                num_shared=1,
                first_dense=3,
                router="sigmoid",
                scaling=2.5,
                num_groups=8,
                top_groups=4,
                bias=True,
                bias_rate=0.001,
                balance_loss=0.0001,
                balance_over="row",
            ),
        )
    )
