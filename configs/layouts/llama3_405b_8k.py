"""Llama 3 405B at 8,192 tokens as published (The Llama 3 Herd of Models, table 4): TP 8, PP 16 interleaved, DP 128.

For 16,384 H100 (on 8,192: DP 64 and --layout.pipeline.microbatches=32). 128 pieces for 126 layers: the first has the
embedding alone, the last the output. Data parallelism shards gradients and optimizer; tensor and sequence parallelism
stay inside a server of 8.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=16, tensor=8),
            rules=dict(batch="data", layers="stage", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor"),
            activations=dict(stream="tensor"),
            grads=dict(embed="data"),
            remat="dots",  # norms, activations and rotations are computed again: with all of them kept it would not fit
            pipeline=dict(schedule="interleaved", microbatches=16, repeats=8, keep="residuals"),
        )
    )
