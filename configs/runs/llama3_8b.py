"""Llama 3 8B on one node of 8 GPUs with 80 GB: bf16, ZeRO-3, flash attention, 1.05e6 tokens a step.

    python -m meshtrain.prepare --input 'text/**/*.jsonl' --tokenizer tokenizer.json --output corpora/text
    python -m meshtrain.train --config configs/runs/llama3_8b.py

State: 8.03e9 parameters x 12 bytes over 8 devices = 12 GB each. Compiled for H100s, the step takes 48 GB a device.
Rows are one document for attention (isolate_documents=False), so that cuDNN's flash attention serves. Peak learning
rate and batch as in The Llama 3 Herd of Models (2024), section 3.4 and table 3, warmed up in fewer steps because the
run is shorter.
"""

from ml_collections import ConfigDict

from configs.models import llama3_8b


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=llama3_8b.get_config(),
            data=dict(paths=["corpora/text"], length=8192, isolate_documents=False),
            optimizer=dict(learning_rate=3e-4, weight_decay=0.1, schedule=dict(warmup=500, final=0.01)),
            precision=dict(compute="bfloat16"),
            global_batch=128,
            steps=20000,
            eval_every=500,
            eval_batches=20,
            checkpoint=dict(every=500, keep_last=2, keep_every=5000),
            workdir="runs/llama3_8b",
            layout="configs/layouts/zero3_remat.py",
        )
    )
