"""Learns the Python standard library's own sources from nothing, on any machine; nothing is downloaded.

    python -m meshtrain.train --config configs/runs/quickstart.py

The first start prepares the text (a 4,096-entry byte-level BPE, 3.5e6 tokens). The model has 4e6 parameters. Where
there is no GPU, 8 virtual CPU devices take part: ZeRO-3 over 4, tensor parallelism over 2.

Expected: the loss falls from 8.34 (ln 4096 = 8.32) to about 4.3 on held-out text, 1.8 bits per byte. 600 steps of 2,048
tokens; on 2 cores three to four minutes.

Kill it and start it again, or go on under another layout: the same numbers come out.

    python -m meshtrain.train --config configs/runs/quickstart.py --layout configs/layouts/zero1.py
"""

from ml_collections import ConfigDict

from configs.models import tiny


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            model=tiny.get_config(),
            data=dict(
                paths=["corpora/python-stdlib"],
                length=256,
                prepare=dict(input=["python-stdlib"], tokenizer="train:4096", held_out=0.02),
            ),
            optimizer=dict(learning_rate=2e-3, schedule=dict(warmup=40, steps=600)),
            global_batch=8,
            steps=600,
            eval_every=300,
            checkpoint=dict(every=100),
            workdir="runs/quickstart",
            layout="configs/layouts/tensor_zero3.py",
            cpu_devices=8,
            log_every=10,
        )
    )
