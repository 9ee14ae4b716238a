"""Llama 3 8B fine-tuned on chats, on one node of 8 GPUs with 80 GB: the loss counts on the answers alone.

    python -m meshtrain.prepare --input 'chats/*.jsonl' --chat-key messages --tokenizer models/llama3_8b \
        --output corpora/chats
    python -m meshtrain.train --config configs/runs/finetune_llama3_8b.py --config.init=models/llama3_8b
    python -m meshtrain.convert export runs/finetune_llama3_8b --to models/llama3_8b_chat

`init` is the Hugging Face folder: weights, and what the section `model` here leaves out (Llama 3.1's rope_scaling, for
example). State as in llama3_8b.py: 12 GB on each device. Chats are packed into rows and kept apart; a row's end
cuts one, in each epoch another.
"""

from ml_collections import ConfigDict

from configs.models import llama3_8b


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=llama3_8b.get_config(),
            init="models/llama3_8b",
            data=dict(paths=["corpora/chats"], length=8192, shift_windows=True),
            optimizer=dict(learning_rate=1e-5, weight_decay=0.0, schedule=dict(warmup=50, final=0.1)),
            precision=dict(compute="bfloat16"),
            global_batch=128,
            steps=500,
            eval_every=50,
            checkpoint=dict(every=125, keep_last=2),
            workdir="runs/finetune_llama3_8b",
            layout="configs/layouts/zero3_remat.py",
        )
    )
