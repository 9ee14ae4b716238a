"""Routers and their losses against values by hand; collapse, idle experts, ties, drops, padding (cases M1 and M3)."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Placement, single_placement
from meshtrain.layout.experts import Experts
from meshtrain.model import ModelConfig, MoEConfig
from meshtrain.model.decoder import all_sums
from tests.model.families import SIZES, make_batch, make_params
from tests.quick import QUICK

LENGTH = 12
DOCUMENTS = [[12], [5, 7], [4, 3, 2], [3]]  # 12 of 48 tokens are padding
MOE = MoEConfig(num_experts=4, top_k=2, mlp=10, balance_loss=0.1, z_loss=0.01, bias=True)
CONFIG = ModelConfig(**SIZES, moe=MOE)


def capacity(factor: float | None) -> Placement:
    place = single_placement()
    experts = Experts() if factor is None else Experts("capacity", factor)
    return dataclasses.replace(place, layout=dataclasses.replace(place.layout, experts=experts))


@functools.cache
def compiled(config: ModelConfig, factor: float | None) -> Any:
    place = capacity(factor)

    def loss(params: Any, batch: Any) -> tuple[jax.Array, Any]:
        sums, routers = all_sums(params, config, batch, place)
        assert routers is not None
        return sums.loss_sum + routers.loss.sum(), (sums, routers)

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)


def run(params: Any, batch: Any, factor: float | None = None, config: ModelConfig = CONFIG) -> tuple[Any, Any, Any]:
    """(loss sums, router sums, gradients)."""
    (_, (sums, routers)), gradients = compiled(config, factor)(params, batch)
    return jax.device_get((sums, routers, gradients))


def with_router(params: Any, weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
    router = params["layers"]["moe"]["router"]
    router = {
        "weight": jnp.broadcast_to(weight, router["weight"].shape),
        "bias": jnp.zeros_like(router["bias"]) if bias is None else jnp.broadcast_to(bias, router["bias"].shape),
    }
    moe = {**params["layers"]["moe"], "router": router}
    return {**params, "layers": {**params["layers"], "moe": moe}}


def batch() -> dict[str, jax.Array]:
    return make_batch(CONFIG, DOCUMENTS, LENGTH)


def test_uniform_routing_has_the_losses_that_the_weights_say() -> None:
    """Case M1's hand value, and M3's ties: all scores are equal, so each token goes to experts 0 and 1."""
    _, routers, gradients = run(with_router(make_params(CONFIG), np.zeros(1)), batch())
    tokens = 36
    np.testing.assert_allclose(routers.balance / tokens, 0.1, rtol=1e-6)
    np.testing.assert_allclose(routers.z / tokens, 0.01 * math.log(4) ** 2, rtol=1e-6)
    np.testing.assert_allclose(routers.entropy / tokens, math.log(4), rtol=1e-6)
    np.testing.assert_array_equal(routers.load, [[tokens, tokens, 0, 0]] * 2)
    for name in ("gate", "up", "down"):  # idle experts get no gradient, exactly
        np.testing.assert_array_equal(gradients["layers"]["moe"]["experts"][name][:, 2:], 0)
        assert np.abs(gradients["layers"]["moe"]["experts"][name][:, :2]).max() > 1e-3


def test_one_expert_wins_all() -> None:
    """Case M3: with a bias for experts 3 and 2 all tokens go there; the load is 2 experts' of 4, and all is finite."""
    bias = np.array([0.0, 0.0, 4.0, 8.0])
    _, routers, gradients = run(with_router(make_params(CONFIG), np.zeros(1), bias), batch())
    np.testing.assert_array_equal(routers.load, [[0, 0, 36, 36]] * 2)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_drops_are_those_of_a_count_by_hand(factor: float) -> None:
    """Case M3: collapse on two experts: a row of n tokens drops what is above the capacity, of each of the two."""
    most = math.ceil(factor * LENGTH * 2 / 4)
    params = with_router(make_params(CONFIG), np.zeros(1))
    sums, routers, gradients = run(params, batch(), factor)
    wanted = sum(2 * max(sum(lengths) - most, 0) for lengths in DOCUMENTS)
    np.testing.assert_array_equal(routers.dropped, [wanted, wanted])
    assert np.isfinite(sums.loss_sum)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


@pytest.mark.parametrize("factor", [None, 1.0])
def test_one_of_four_takes_all_and_three_are_idle(factor: float | None) -> None:
    """Case M3 with one expert for each token: of a row of n tokens the first 12 x 1 / 4 = 3 find a place, or all."""
    config = dataclasses.replace(CONFIG, moe=dataclasses.replace(MOE, top_k=1))
    params = with_router(make_params(config), np.zeros(1), np.array([0.0, 0.0, 1.0, 0.0]))
    sums, routers, gradients = run(params, batch(), factor, config)
    np.testing.assert_array_equal(routers.load, [[0, 0, 36, 0]] * 2)
    kept = 36 if factor is None else sum(min(sum(lengths), 3) for lengths in DOCUMENTS)
    np.testing.assert_array_equal(routers.dropped, [36 - kept] * 2)
    np.testing.assert_allclose(routers.balance / 36, 0.1, rtol=1e-6)  # of scores that are all 1/4
    assert np.isfinite(sums.loss_sum)
    for name in ("gate", "up", "down"):
        of_expert = gradients["layers"]["moe"]["experts"][name]
        np.testing.assert_array_equal(np.delete(of_expert, 2, axis=1), 0)
        assert np.abs(of_expert[:, 2]).max() > 1e-3


def test_a_dropped_token_passes_by_the_residual_only() -> None:
    """Behind the capacity nothing is added: with a capacity of one token, the others are as if experts were zero."""
    params = with_router(make_params(CONFIG), np.zeros(1))
    rows = {**batch(), "labels": batch()["labels"].at[:, :1].set(-1)}
    only_first = Experts("capacity", 1e-6).capacity(LENGTH, 2, 4)
    assert only_first == 1
    # A model of one layer, so that no token sees what experts gave to another one.
    config = dataclasses.replace(CONFIG, num_layers=1)
    params = {**params, "layers": jax.tree.map(lambda w: w[:1], params["layers"])}
    dropped = run(params, rows, 1e-6, config)
    experts = jax.tree.map(jnp.zeros_like, params["layers"]["moe"]["experts"])
    moe = {**params["layers"]["moe"], "experts": experts}
    without = run({**params, "layers": {**params["layers"], "moe": moe}}, rows, None, config)
    np.testing.assert_array_equal(dropped[0].ce_sum, without[0].ce_sum)


def test_capacity_for_all_is_dropless() -> None:
    params = make_params(CONFIG)
    for a, b in zip(*(jax.tree.leaves(run(params, batch(), factor)) for factor in (None, 2.0)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(np.abs(b).max(), 1))


@pytest.mark.parametrize("factor", [None, 1.0])
def test_padding_neither_counts_nor_takes_capacity(factor: float | None) -> None:
    """Other ids in the padding change no bit; and no expert hears of them."""
    params, rows = make_params(CONFIG), batch()
    padding = np.asarray(rows["segments"]) == 0
    other = {**rows, "tokens": jnp.where(padding, (rows["tokens"] + 5) % CONFIG.vocab, rows["tokens"])}
    one, two = run(params, rows, factor), run(params, other, factor)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert one[1].load.sum() == 2 * 2 * (~padding).sum()
    without_segments = make_batch(CONFIG, [[12], [9], [1], [3]], LENGTH)
    segments = without_segments.pop("segments")
    assert run(params, without_segments, factor)[1].load.sum() == 2 * 2 * (np.asarray(segments) > 0).sum()


def test_the_balance_of_rows_is_that_of_each_row_alone() -> None:
    config = dataclasses.replace(CONFIG, moe=dataclasses.replace(MOE, balance_over="row"))
    params, rows = make_params(config), batch()
    whole = run(params, rows, None, config)[1].balance
    alone = [
        run(params, jax.tree.map(lambda x, i=i: jnp.concatenate([x[i : i + 1]] * 4), rows), None, config)[1].balance / 4
        for i in range(4)
    ]
    np.testing.assert_allclose(whole, sum(alone), rtol=1e-5)
    assert np.abs(whole - run(params, rows)[1].balance).max() > 1e-3  # the batch's is another number


@pytest.mark.parametrize(
    ("moe", "text"),
    [
        (
            dict(top_k=5),
            r"model.moe.top_k: a token cannot go to 5 different experts, .* only 4 .*top_k=4 would",
        ),
        (
            dict(num_groups=3),
            r"model.moe.num_groups: 4 experts .* do not divide into 3 groups. .*num_groups=2 would",
        ),
        (dict(num_groups=2, top_groups=3), r"model.moe.top_groups: 3 of 2 groups"),
        (
            dict(num_groups=4, top_groups=1),
            r"model.moe.top_k: 2 experts cannot .* 1 groups .* of 1 experts .*=2 would",
        ),
        (dict(router="softmx"), r"model.moe.router: 'softmx' is not one of softmax, sigmoid. Did you mean 'softmax'"),
        (dict(first_dense=1, every=2), r"model.moe.every: of 2 layers .* 1 are behind the 1 dense ones"),
        (dict(first_dense=2), r"model.moe.every: of 2 layers .* 0 are behind the 2 dense ones"),
        (dict(mlp=0), r"model.moe.mlp: expected a whole number of at least 1, not 0"),
        (dict(balance_loss=-1.0), r"model.moe.balance_loss: -1.0 must be at least 0"),
    ],
)
def test_what_makes_no_sense_is_an_error_with_the_numbers(moe: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        ModelConfig(**SIZES, moe=MoEConfig(**(dict(num_experts=4, top_k=2, mlp=10) | moe)))
