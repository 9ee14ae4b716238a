"""As published for Llama 3 405B at 131,072 tokens (table 4): 16,384 GPUs = data 8 x stage 16 x context 16 x tensor 8.

Of the paper: tensor in a node, keys and values gathered over `context`, an interleaved pipeline of 126 single layers
(the first piece only embeds, the last is only the output), gradients and optimizer cut over the data.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=16, context=16, tensor=8),
            rules=dict(
                batch="data", length="context", layers="stage",
                heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor",
            ),
            activations=dict(stream=("context", "tensor")),
            grads=dict(embed=("data", "context")),
            attention="gather",
            order="zigzag",
            remat="dots",
            pipeline=dict(schedule="interleaved", microbatches=16, repeats=8, keep="residuals"),
        )
    )  # fmt: skip
