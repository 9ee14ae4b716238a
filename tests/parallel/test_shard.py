"""`on_shards`: whole arrays in and out, also inside another shard_map; nothing at all on one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from meshtrain.layout import single_placement
from meshtrain.parallel.cross_entropy import cross_entropy
from meshtrain.parallel.embedding import embed_tokens
from meshtrain.parallel.shard import free_axes, on_copies, on_shards, shard_index, without
from tests.parallel.layouts import placed


def test_cut_and_joined() -> None:
    place = placed("two axes, zero3")
    x = jnp.arange(16.0).reshape(8, 2)
    spec = PartitionSpec(("b", "c"))
    number = on_shards(place, lambda x: x * 0 + shard_index(("b", "c")), (spec,), spec)
    np.testing.assert_array_equal(jax.jit(number)(x)[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    gradient = jax.jit(jax.grad(lambda x: on_shards(place, jnp.sin, (spec,), spec)(x).sum()))(x)
    np.testing.assert_allclose(gradient, jnp.cos(x), rtol=1e-6)


def test_one_device_is_the_function_itself() -> None:
    assert on_shards(single_placement(), jnp.sin, (PartitionSpec(),), PartitionSpec()) is jnp.sin


def test_copies_have_no_summed_gradient() -> None:
    """Of a function that the compiler is not to cut, under axes of which one is already manual and two are left."""
    place = placed("two axes, zero3")
    x, spec = jnp.arange(16.0).reshape(8, 2), PartitionSpec("a")

    def outer(x: jax.Array) -> jax.Array:
        seen = []

        def inner(x: jax.Array) -> jax.Array:
            seen.append(set(jax.sharding.get_abstract_mesh().manual_axes))
            return jnp.sin(x)

        y = on_copies(place, inner)(x)
        assert seen == [{"a", "b", "c"}]
        return y

    wave = on_shards(place, outer, (spec,), spec)
    value, pull = jax.vjp(jax.jit(wave), x)
    np.testing.assert_allclose(value, jnp.sin(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(pull)(jnp.ones_like(x))[0], jnp.cos(x), rtol=1e-6)
    text = jax.jit(lambda x, dy: jax.vjp(wave, x)[1](dy)).lower(x, x).compile().as_text()
    assert "all-reduce" not in str(text)


def test_without() -> None:
    assert without(("a", "b", "c"), ("b",), ("c", "d")) == ("a",)


def test_inside_another_shard_map() -> None:
    """Lookup and loss where an outer shard_map has the batch's axis in hand: only the vocabulary's is left to them."""
    place = placed("batch and vocab")
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(64, 16)), jnp.float32)
    tokens, labels = (jnp.asarray(rng.integers(0, 64, (4, 6)), jnp.int32) for _ in range(2))

    def of(table: Any, tokens: Any, labels: Any, place: Any) -> Any:
        x = embed_tokens(table, tokens, place)
        return cross_entropy(x, table, labels, num_vocab=60, place=place).loss_sum

    def outer(table: Any, tokens: Any, labels: Any) -> Any:
        assert free_axes(place, "batch") == ()
        value, gradient = jax.value_and_grad(of)(table, tokens, labels, place)
        return jax.lax.psum(value, "rows"), jax.lax.psum(gradient, "rows")

    rows, whole = PartitionSpec("rows"), PartitionSpec()
    nested = jax.shard_map(
        outer, mesh=place.mesh, in_specs=(whole, rows, rows), out_specs=(whole, whole), axis_names={"rows"},
        check_vma=False,
    )  # fmt: skip
    found = jax.jit(nested)(table, tokens, labels)
    expected = jax.jit(jax.value_and_grad(of), static_argnums=3)(table, tokens, labels, single_placement())
    for one, two in zip(found, expected, strict=True):  # sums over 24 tokens and 64 rows in another order
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
