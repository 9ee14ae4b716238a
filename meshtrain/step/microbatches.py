"""Cutting a batch into microbatches, for gradient accumulation and for a pipeline."""

import jax

Batch = dict[str, jax.Array]


def microbatches(batch: Batch, num: int) -> Batch:
    """[batch, ...] -> [num, batch / num, ...]. Microbatch m takes rows m, m + num, ...: rows stay on their devices."""
    return {name: x.reshape(x.shape[0] // num, num, *x.shape[1:]).swapaxes(0, 1) for name, x in batch.items()}
