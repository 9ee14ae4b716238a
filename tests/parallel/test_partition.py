"""What the compiler makes of lookup and loss on 8 devices: which collectives, of which arrays, over which devices."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.parallel import cross_entropy, embed_tokens
from tests.parallel.layouts import placed

B, T, D, V = 8, 32, 16, 128
COLLECTIVE = re.compile(r"= (\([^)]*\)|\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\(")


def collectives(name: str, lookup: Any) -> list[tuple[str, str]]:
    """(kind, shapes) of the collectives of a step: lookup, a layer that does nothing, loss, gradient of the table."""
    place = placed(name)

    def step(table: Any, tokens: Any, labels: Any) -> Any:
        w = place.at_use(table, "vocab", "embed")
        x = place.constrain(jnp.sin(lookup(w, tokens, place)), "batch", "stream", "embed")
        return cross_entropy(x, w, labels, num_vocab=V, place=place).loss_sum

    table = jax.ShapeDtypeStruct((V, D), jnp.float32, sharding=place.sharding("params", ("vocab", "embed"), (V, D)))
    tokens = jax.ShapeDtypeStruct(
        (B, T), jnp.int32, sharding=place.sharding("activations", ("batch", "length"), (B, T))
    )
    text = jax.jit(jax.grad(step)).lower(table, tokens, tokens).compile().as_text()
    return [(kind, re.sub(r"\{[\d,]*\}|/\*.*?\*/", "", shape)) for shape, kind in COLLECTIVE.findall(str(text))]


def elements(shape: str) -> int:
    """The elements of the largest array in an HLO shape."""
    sizes = [[int(n) for n in dims.split(",") if n] for dims in re.findall(r"\w+\[([\d,]*)\]", shape)]
    return max(int(jnp.prod(jnp.asarray(size or [1]))) for size in sizes)


def test_batch_and_vocab() -> None:
    found = collectives("batch and vocab", embed_tokens)
    kinds = {kind for kind, _ in found}
    assert kinds == {"all-reduce"}, found  # no gather of tokens, no exchange
    large = sorted(elements(shape) for _, shape in found if elements(shape) > B * T)
    # Of this device's half of the batch: the rows looked up, and dx of the loss. Of its quarter of the table: both
    # gradients, in one all-reduce of two arrays.
    assert large == [V // 4 * D, B // 2 * T * D, B // 2 * T * D], found


def test_sequence() -> None:
    found = collectives("sequence", embed_tokens)
    gathers = [elements(shape) for kind, shape in found if kind == "all-gather"]
    assert gathers
    assert set(gathers) == {B // 2 * T * D}, found  # the stream before the loss, its gradient in the lookup
    assert not [kind for kind, _ in found if kind in ("all-to-all", "collective-permute")], found


def test_a_plain_lookup_bites() -> None:
    """Why the lookup is written out: left to the compiler it gathers the batch, or worse."""
    plain = collectives("sequence", lambda w, tokens, place: w[tokens])
    ours = collectives("sequence", embed_tokens)
    assert sum(elements(shape) for _, shape in plain) > sum(elements(shape) for _, shape in ours)


@pytest.mark.parametrize("name", ["batch and vocab", "sequence"])
def test_evaluation_has_no_gradient_traffic(name: str) -> None:
    place = placed(name)

    def evaluate(table: Any, x: Any, labels: Any) -> Any:
        return cross_entropy(x, table, labels, num_vocab=V, place=place)

    given = (
        jax.ShapeDtypeStruct((V, D), jnp.float32, sharding=place.sharding("use", ("vocab", "embed"), (V, D))),
        jax.ShapeDtypeStruct(
            (B, T, D), jnp.float32, sharding=place.sharding("activations", ("batch", "length", "embed"), (B, T, D))
        ),
        jax.ShapeDtypeStruct((B, T), jnp.int32, sharding=place.sharding("activations", ("batch", "length"), (B, T))),
    )
    text = jax.jit(evaluate).lower(*given).compile().as_text()
    found = [(kind, shape) for shape, kind in COLLECTIVE.findall(str(text))]
    assert all(kind == "all-reduce" and elements(shape) <= B * T for kind, shape in found), found
