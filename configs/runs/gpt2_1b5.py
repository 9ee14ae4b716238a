"""GPT-2 1.5B on one node of 8 GPUs: bf16, ZeRO-1, dropout 0.1, 524,288 tokens a step.

    python -m meshtrain.prepare --input 'text/**/*.jsonl' --tokenizer tokenizer.json --output corpora/webtext
    python -m meshtrain.train --config configs/runs/gpt2_1b5.py

The paper gives batch and length; learning rate, warm-up and decay are those of Megatron-LM's GPT-2 (2019, section 4).
"""

from ml_collections import ConfigDict

from configs.models import gpt2_1b5


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=gpt2_1b5.get_config(),
            data=dict(paths=["corpora/webtext"], length=1024, isolate_documents=False),
            optimizer=dict(
                learning_rate=1.5e-4,
                b2=0.999,
                weight_decay=0.01,
                schedule=dict(warmup=3000, final=0.0666, steps=300000),
            ),
            precision=dict(compute="bfloat16"),
            global_batch=512,
            steps=300000,
            eval_every=1000,
            eval_batches=20,
            checkpoint=dict(every=1000, keep_last=2, keep_every=50000),
            workdir="runs/gpt2_1b5",
            layout="configs/layouts/zero1_microbatches.py",
        )
    )
