"""Rematerialisation: what a layer keeps for its backward pass. Each policy keeps less than the one before it.

    none    everything that the layers' own backward rules ask for
    dots    the results of matrix products and of attention: only norms, activations and rotations are done again
    names   what attention needs (queries, keys, values, its result and normalisers): the MLP is done again; of latent
            attention the latents, from which queries, keys and values are made again
    full    nothing but the layer's input: the whole layer is done again

No policy keeps a gathered weight (see product.py). The names are set where the arrays are made: by `attention.py`,
`latent.py`, `mlp.py`, `block.py`, and for attention's own results by the kernels of `parallel.attention`.
"""

from collections.abc import Callable
from typing import Any

import jax

NAMES = ("query", "key", "value", "latent", "attention_out", "attention_lse")
DOTS = (*NAMES, "expanded", "stream", "hidden")


def rematerialize(layer: Callable[..., Any], remat: str) -> Callable[..., Any]:
    """`layer` with the memory of the policy `remat`. It is meant for the body of a scan (no barrier against CSE)."""
    policies = jax.checkpoint_policies
    if remat == "none":
        return layer
    policy = {
        "dots": policies.save_only_these_names(*DOTS),
        "names": policies.save_only_these_names(*NAMES),
        "full": policies.nothing_saveable,
    }[remat]
    return jax.checkpoint(layer, policy=policy, prevent_cse=False)
