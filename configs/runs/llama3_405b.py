"""Llama 3 405B: tensor parallelism over the 8 GPUs of a node, ZeRO-3 over all nodes, bf16, 16.8e6 tokens a step.

    python -m meshtrain.train --config configs/runs/llama3_405b.py

That is for 16,384 GPUs, one sequence a node; with fewer, add microbatches: --layout.accumulate=16 on 1,024. Compiled
for H100s, the step then takes 16.5 GB a device (4.8 of state), on 16,384 it takes 9.0. Learning rate, warm-up and
batch (that of the later part of the run) as in The Llama 3 Herd of Models (2024), section 3.4.1.
"""

from ml_collections import ConfigDict

from configs.models import llama3_405b


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=llama3_405b.get_config(),
            data=dict(paths=["corpora/text"], length=8192, isolate_documents=False),
            optimizer=dict(learning_rate=8e-5, weight_decay=0.1, schedule=dict(warmup=8000, final=0.01, steps=1200000)),
            precision=dict(compute="bfloat16"),
            global_batch=2048,
            steps=1200000,
            eval_every=2000,
            eval_batches=20,
            checkpoint=dict(every=500, keep_last=3, keep_every=20000),
            workdir="runs/llama3_405b",
            layout="configs/layouts/tensor8_zero3.py",
        )
    )
