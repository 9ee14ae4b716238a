"""DeepSeek-V3's pre-training: 15,360 sequences of 4,096 tokens a step on 2,048 GPUs of 80 GB.

    python -m meshtrain.show --config configs/runs/deepseek_v3.py --devices 2048
    python -m meshtrain.train --config configs/runs/deepseek_v3.py

Learning rate, warm-up, decay rates and batch (that of the later part of the run) as in the DeepSeek-V3 Technical Report
(2024), section 4.2. Not as there: the rate stays at its peak until 10e12 tokens (here its cosine begins at once), and
products are FP8 (here bf16). Compiled for 2,048 H100s the step takes 64.0 GB a device, 4.7 of them state.
"""

from ml_collections import ConfigDict

from configs.models import deepseek_v3


def get_config() -> ConfigDict:
    model = deepseek_v3.get_config()
    model.max_length, model.rope_scaling = 4096, None  # longer texts, and yarn for them, came after pre-training
    return ConfigDict(
        dict(
            model=model,
            data=dict(paths=["corpora/text"], length=4096, isolate_documents=False),
            optimizer=dict(
                learning_rate=2.2e-4, b1=0.9, b2=0.95, weight_decay=0.1,
                schedule=dict(warmup=2000, final=0.1, steps=235000),
            ),
            precision=dict(compute="bfloat16"),
            global_batch=15360,
            steps=235000,
            eval_every=1000,
            eval_batches=2,
            checkpoint=dict(every=500, keep_last=3),
            workdir="runs/deepseek_v3",
            layout="configs/layouts/deepseek_v3.py",
        )
    )  # fmt: skip
