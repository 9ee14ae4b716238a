"""The proof bites: each classic mistake, put into the program, makes it fail and is described by what it looks like."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.layout import gather, padding
from meshtrain.model import decoder
from meshtrain.parallel import embedding
from meshtrain.parallel.tokens import TokenAxes
from meshtrain.run.proof import Verdict, details
from meshtrain.step import gradients
from tests.run.proofs import proof_of, verdict_on

TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
DATA4 = dict(mesh=dict(data=4), rules=dict(batch="data"))
TENSOR4 = dict(mesh=dict(data=1, tensor=4), rules=TENSOR)
Patch = pytest.MonkeyPatch

# Modules that share their name with the function that their package exports.
cross_entropy = import_module("meshtrain.parallel.cross_entropy")
attend = import_module("meshtrain.parallel.attention.attend")


def differs(declared: dict[str, Any], model: str = "llama", initialize: bool = False) -> tuple[Verdict, str]:
    proof = proof_of(model)  # the fixture made it, before the mistake went in
    jax.clear_caches()
    verdict = verdict_on(proof, declared, num_devices=4, initialize=initialize)
    assert verdict.status == "DIFFERS", f"the mistake was not noticed, the verdict is {verdict.status}"
    return verdict, details(verdict)


@pytest.fixture(autouse=True)
def _references() -> None:
    for model in ("llama", "gemma", "gpt"):
        proof_of(model)


@pytest.mark.slow
def test_the_loss_is_not_summed_over_the_batch(monkeypatch: Patch) -> None:
    monkeypatch.setattr(cross_entropy, "_over_tokens", lambda sums, axes: sums)
    _, text = differs(DATA4)
    assert "only the loss that is reported is wrong" in text


@pytest.mark.slow
def test_a_gradient_is_averaged_over_the_batch(monkeypatch: Patch) -> None:
    def backward(place: Any, kept: Any, dx: jax.Array) -> Any:
        table, none = original(place, kept, dx)
        return table / 4, none

    original = embedding._backward
    embedding._embed.defvjp(embedding._forward, backward)
    try:
        _, text = differs(dict(DATA4), model="gpt")
    finally:
        embedding._embed.defvjp(embedding._forward, original)
    assert "gradient of embedding/table" in text
    assert "is 1/4 times what it should be in every entry: 1 over the size of `data`" in text
    assert "averaged where they must add up" in text


def test_a_gradient_is_summed_twice_on_its_way_back(monkeypatch: Patch) -> None:
    def twice(used: Any, grads: Any, _: None, gradient: jax.Array) -> tuple[jax.Array]:
        return gather._backward(used, grads, None, 2 * gradient)

    gather._gather.defvjp(gather._forward, twice)
    try:
        verdict, text = differs(dict(DATA4, params=dict(mlp="data")))
    finally:
        gather._gather.defvjp(gather._forward, gather._backward)
    assert verdict.first is not None
    assert verdict.first.path.startswith("layers/mlp/")
    assert "is 2 times what it should be" in text
    assert "the forward pass agrees" in text


@pytest.mark.slow
def test_a_sum_over_the_vocabulary_is_missing_backward(monkeypatch: Patch) -> None:
    class Missing(TokenAxes):
        def sum_over_vocab(self, x_BTD: jax.Array, place: Any) -> jax.Array:
            return x_BTD

    monkeypatch.setattr(cross_entropy, "TokenAxes", Missing)
    _, text = differs(TENSOR4)
    assert "differ" in text


@pytest.mark.slow
def test_padding_rows_of_the_vocabulary_get_probability(monkeypatch: Patch) -> None:
    """Case L4."""
    original = decoder.cross_entropy

    def all_rows(x: Any, table: Any, labels: Any, **rest: Any) -> Any:
        return original(x, table, labels, **{**rest, "num_vocab": len(table)})

    monkeypatch.setattr(decoder, "cross_entropy", all_rows)
    _, text = differs(TENSOR4)
    assert "the forward pass differs" in text


@pytest.mark.slow
def test_padding_that_is_not_zero(monkeypatch: Patch) -> None:
    from meshtrain.step import state

    def ones(tree: Any, specs: Any, place: Any) -> Any:
        return jax.tree.map(
            lambda x: jnp.where(x == 0, 1, x) if x.ndim == 2 else x, padding.pad_tree(tree, specs, place)
        )

    monkeypatch.setattr(state, "pad_tree", ones)
    _, text = differs(TENSOR4, initialize=True)
    assert "the padding of embedding/table [vocab, embed] is not zero" in text


@pytest.mark.slow
def test_each_device_takes_the_first_key_heads(monkeypatch: Patch) -> None:
    """Case L3."""
    monkeypatch.setattr(attend, "shard_index", lambda axes: 0)
    differs(TENSOR4)


def test_microbatches_count_alike(monkeypatch: Patch) -> None:
    """Cases N2 and N10: a mean of means."""
    original: Callable[..., Any] = gradients.all_sums

    def mean_of_means(params: Any, config: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        sums, routers = original(params, config, batch, *args, **kwargs)
        mean = sums.loss_sum / jnp.maximum(sums.num_tokens, 1)
        return sums._replace(loss_sum=mean * 10.0), routers

    monkeypatch.setattr(gradients, "all_sums", mean_of_means)
    differs(dict(mesh=dict(data=4), rules=dict(batch="data"), accumulate=2))


@pytest.mark.slow
def test_dropout_by_row_of_the_microbatch(monkeypatch: Patch) -> None:
    """Case N4: a mask that depends on where a row lies, and not on which sample it is."""
    original = decoder.make_inputs

    def by_row(batch: Any, *rest: Any) -> Any:
        return original({**batch, "index_B": jnp.arange(len(batch["tokens"]), dtype=jnp.uint32)}, *rest)

    monkeypatch.setattr(decoder, "make_inputs", by_row)
    differs(dict(mesh=dict(data=4), rules=dict(batch="data"), accumulate=2), model="gemma")


@pytest.mark.slow
def test_initial_weights_that_depend_on_the_layout(monkeypatch: Patch) -> None:
    from meshtrain.step import state

    original = state.initialize
    monkeypatch.setattr(state, "initialize", lambda model, key: original(model, jax.random.fold_in(key, 1)))
    _, text = differs(DATA4, initialize=True)
    assert "initial weights: embedding/table is not bitwise that of the reference" in text


@pytest.mark.slow
def test_a_batch_in_the_wrong_order(monkeypatch: Patch) -> None:
    """A swapped microbatch: labels of one go with the tokens of another."""
    original = gradients.microbatches

    def swapped(batch: Any, num: int) -> Any:
        parts = original(batch, num)
        return {**parts, "labels": parts["labels"][::-1]}

    monkeypatch.setattr(gradients, "microbatches", swapped)
    differs(dict(mesh=dict(data=4), rules=dict(batch="data"), accumulate=2))
