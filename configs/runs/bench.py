"""The benchmark's work: a Llama decoder of 56,369,664 parameters on random tokens, 4,096 tokens a step.

    python scripts/bench.py

runs it on the CPU in several variants. It is no run to learn anything from: nothing is evaluated or saved on the way.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=dict(
                num_layers=8, embed=512, num_heads=8, num_kv_heads=4, head_dim=64, mlp=1408, vocab=32000, max_length=512
            ),
            data=dict(kind="synthetic", length=512),
            optimizer=dict(learning_rate=3e-4, schedule=dict(shape="constant")),
            precision=dict(compute="float32"),
            global_batch=8,
            steps=13,
            workdir="runs/bench",
            layout="configs/layouts/single.py",
            cpu_devices=1,
            log_every=1,
            tensorboard=False,
        )
    )
