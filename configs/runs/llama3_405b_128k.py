"""Llama 3 405B on rows of 131,072 tokens, 128 of them a step (16,777,216 tokens), as in its long-context training.

    python -m meshtrain.show --config configs/runs/llama3_405b_128k.py --devices 16384
    python -m meshtrain.train --config configs/runs/llama3_405b_128k.py

Needs 16,384 GPUs of 80 GB in nodes of 8 (The Llama 3 Herd of Models (2024), table 4 and section 3.4.2, which gives
the length and about 8e11 tokens, but no learning rate: this one is the final rate of the run before). Begin with its
weights: --config.init=runs/llama3_405b.
"""

from ml_collections import ConfigDict

from configs.models import llama3_405b


def get_config() -> ConfigDict:
    model = llama3_405b.get_config()
    model.max_length = 131072
    return ConfigDict(
        dict(
            model=model,
            data=dict(paths=["corpora/long"], length=131072),
            optimizer=dict(learning_rate=8e-7, weight_decay=0.1, schedule=dict(warmup=100, final=1.0, steps=48000)),
            precision=dict(compute="bfloat16"),
            global_batch=128,
            steps=48000,
            eval_every=1000,
            eval_batches=5,
            checkpoint=dict(every=250, keep_last=3),
            workdir="runs/llama3_405b_128k",
            layout="configs/layouts/llama3_405b_128k.py",
        )
    )
