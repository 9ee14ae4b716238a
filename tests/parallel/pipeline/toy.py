"""A small model in three parts, for tests of the executor alone: a tied table, tanh layers, a loss."""

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.parallel.pipeline.worker import Batch, Stages

VOCAB, WIDTH, LENGTH = 13, 8, 6

Weights = dict[str, jax.Array]


def layer(w: jax.Array, x: jax.Array, microbatch: Batch, number: jax.Array) -> jax.Array:
    """Depends on the layer's own number and on the microbatch's data, so that a mix-up shows."""
    phase = (number + 1) * 0.1 * microbatch["positions"][..., None]
    return x + jnp.tanh(x @ w + phase)


def layers(weights: Weights, x: jax.Array, microbatch: Batch, ids: jax.Array) -> jax.Array:
    def step(x: jax.Array, one: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        w, number = one
        return jnp.where(number < 0, x, layer(w, x, microbatch, number)), None

    return jax.lax.scan(step, x, (weights["w"], ids))[0]


def embed(rest: Weights, microbatch: Batch) -> jax.Array:
    return rest["table"][microbatch["tokens"]]


def head(rest: Weights, x: jax.Array, microbatch: Batch) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    logits = (x * rest["scale"]) @ rest["table"].T
    counted = microbatch["labels"] >= 0
    ce = (
        jax.nn.logsumexp(logits, -1)
        - jnp.take_along_axis(logits, jnp.maximum(microbatch["labels"], 0)[..., None], -1)[..., 0]
    )
    loss = jnp.where(counted, ce, 0).sum()
    return loss, (loss, counted.sum().astype(jnp.float32))


STAGES = Stages(embed, layers, head)


def weights(num_layers: int) -> tuple[Weights, Weights]:
    """(layers, rest)."""
    keys = jax.random.split(jax.random.key(0), 3)
    return (
        {"w": 0.5 * jax.random.normal(keys[0], (num_layers, WIDTH, WIDTH))},
        {"table": jax.random.normal(keys[1], (VOCAB, WIDTH)), "scale": 1 + 0.1 * jax.random.normal(keys[2], (WIDTH,))},
    )


def batch(num_microbatches: int, size: int) -> Batch:
    """Arrays [microbatch, batch, length]; no two microbatches alike, each with its own number of counted tokens."""
    random = np.random.default_rng(1)
    shape = (num_microbatches, size, LENGTH)
    labels = random.integers(0, VOCAB, shape)
    labels[random.random(shape) < 0.3] = -1
    return {
        "tokens": jnp.asarray(random.integers(0, VOCAB, shape)),
        "labels": jnp.asarray(labels),
        "positions": jnp.asarray(random.integers(0, 9, shape)),
    }


def plain(all_layers: Weights, rest: Weights, batch_MB: Batch) -> tuple:
    """What one device computes: (sums by microbatch, gradient of the layers, gradient of the rest)."""
    ids = jnp.arange(all_layers["w"].shape[0])

    def loss(all_layers: Weights, rest: Weights) -> tuple:
        sums = [
            head(rest, layers(all_layers, embed(rest, one), one, ids), one)[1]
            for one in ({name: x[i] for name, x in batch_MB.items()} for i in range(batch_MB["tokens"].shape[0]))
        ]
        stacked = jax.tree.map(lambda *s: jnp.stack(s), *sums)
        return stacked[0].sum(), stacked

    (of_layers, of_rest), sums = jax.grad(loss, argnums=(0, 1), has_aux=True)(all_layers, rest)
    return sums, of_layers, of_rest
