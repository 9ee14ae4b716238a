"""The benchmark's work for GPUs: Llama 3.2 1B (1.24e9 parameters) in bfloat16 on random tokens, rows of 4,096.

    python scripts/gpu_smoke.py

runs it in several variants. It is no run to learn anything from: nothing is evaluated or saved on the way.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=dict(
                num_layers=16, embed=2048, num_heads=32, num_kv_heads=8, head_dim=64, mlp=8192, vocab=128256,
                max_length=4096, tied=True, rope_theta=5e5,
            ),
            data=dict(kind="synthetic", length=4096, isolate_documents=False),
            optimizer=dict(learning_rate=3e-4, schedule=dict(shape="constant")),
            precision=dict(compute="bfloat16"),
            global_batch=8,
            steps=12,
            workdir="runs/bench_gpu",
            layout="configs/layouts/single.py",
            log_every=1,
            tensorboard=False,
        )
    )  # fmt: skip
