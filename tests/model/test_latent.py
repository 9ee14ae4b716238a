"""Latent attention: mistakes that the comparison with float64 must catch, the order of weights, memory, bad input.

That it equals the reference (states, loss, each gradient, packed rows) is in test_decoder.py, as for every family.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Layout, named_specs, place, place_abstract
from meshtrain.layout.inventory import local_shape
from meshtrain.model import LatentConfig, ModelConfig, RopeScaling, count_parameters, describe, latent
from meshtrain.model.flops import attention_flops_per_token, matrix_parameters
from meshtrain.model.remat import DOTS, NAMES
from meshtrain.model.rotary import rotary_tables, rotate
from tests.model import reference
from tests.model.families import DEEPSEEK, DEEPSEEK_LITE, LATENT, SIZES, make_batch, make_params
from tests.model.steps import compiled, remat, run, training_function
from tests.model.test_decoder import DOCUMENTS, LENGTH, wide
from tests.model.test_remat import assert_close, traced
from tests.quick import QUICK

Patch = pytest.MonkeyPatch


def halves(patch: Patch) -> None:
    """Pairs (i, i + half) in place of (2i, 2i + 1)."""
    patch.setattr(latent, "rotate", lambda x, tables, interleaved: rotate(x, tables))


def unturned_key(patch: Patch) -> None:
    patch.setattr(latent, "rotate", lambda x, tables, interleaved: x if x.shape[2] == 1 else rotate(x, tables, True))


def no_mscale(patch: Patch) -> None:
    patch.setattr(RopeScaling, "term", lambda self, mscale: 1.0)


def values_before_keys(patch: Patch) -> None:
    patch.setattr(latent, "side_by_side", lambda *weights: jnp.concatenate(weights[::-1], axis=-1))


def no_norm(patch: Patch) -> None:
    patch.setattr(latent.Norm, "__call__", lambda self, x, place: x * self.scale[...])


@pytest.mark.parametrize("mistake", [halves, unturned_key, no_mscale, values_before_keys, no_norm])
def test_mistakes_bite(mistake: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Each moves states by more than 100 times what test_decoder.py allows."""
    config = DEEPSEEK if mistake is not values_before_keys else replace(DEEPSEEK, latent=replace(LATENT, value_dim=6))
    params, batch = make_params(config), make_batch(config, DOCUMENTS, LENGTH)
    expected = reference.hidden(wide(params), config, wide(batch))
    mistake(monkeypatch)
    step = jax.jit(training_function(config, remat("none")), compiler_options=QUICK)
    states = np.asarray(step(params, batch, jax.random.key(0))[0][1])
    seen = np.asarray(batch["segments"]) > 0
    assert np.abs(states - expected)[seen].max() > 1e-2


def test_interleaved_pairs_are_halves_in_another_order() -> None:
    """What a file with the pairs' first halves in front would need: columns 0, 2, .., then 1, 3, .."""
    config = ModelConfig(**{**SIZES, "head_dim": 8})
    tables = rotary_tables(jnp.arange(5)[None], config)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, 2, 8)), jnp.float32)
    order = np.array([0, 2, 4, 6, 1, 3, 5, 7])
    np.testing.assert_array_equal(rotate(x, tables, interleaved=True)[..., order], rotate(x[..., order], tables))


def test_sizes_by_hand() -> None:
    """embed 16, 4 heads, latents 9 and 7, a head 6 + 4 wide, its value 5."""
    assert DEEPSEEK.rotary_dim == 4
    assert DEEPSEEK.value_dim == 5
    attention = 16 * (9 + 7 + 4) + 9 * 4 * 10 + 7 * 4 * (6 + 5) + 4 * 5 * 16
    layer = attention + 3 * 16 * 20
    assert matrix_parameters(DEEPSEEK) == 2 * layer + 29 * 16
    assert count_parameters(DEEPSEEK) == 2 * (layer + 9 + 7 + 16 + 16) + 2 * 29 * 16 + 16
    # 2 layers, a multiply-add is 2, scores over 10 and values over 5 of each of 4 heads, half of 12 keys
    assert attention_flops_per_token(DEEPSEEK, 12) == 2 * 2 * 4 * (10 + 5) * 6


def test_scores_are_scaled_as_published() -> None:
    """DeepSeek-V3: 192 wide, factor 40, mscale_all_dim 1: 192^-0.5 (0.1 ln 40 + 1)^2; cos and sin stay as they are."""
    sizes = LatentConfig(query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    scaling = RopeScaling("yarn", 40.0, original_length=4096, mscale=1.0, mscale_all_dim=1.0)
    config = ModelConfig(**{**SIZES, "num_kv_heads": 4, "head_dim": 192}, latent=sizes, rope_scaling=scaling)
    assert config.attention_scale == pytest.approx(192**-0.5 * 1.3688879**2, rel=1e-6)
    assert replace(config, rope_scaling=None).attention_scale == 192**-0.5
    assert replace(config, query_scale=0.3).attention_scale == 0.3
    assert reference.rope(config)[1] == 1.0


WIDE, DEEP = (
    replace(DEEPSEEK_LITE, num_layers=n, embed=64, mlp=176, max_length=128, latent=replace(LATENT, query_rank=12))
    for n in (4, 16)
)


@pytest.mark.parametrize("policy", ["dots", "names", "full"])
def test_remat_changes_nothing(policy: str) -> None:
    params, batch = make_params(DEEPSEEK), make_batch(DEEPSEEK, DOCUMENTS, LENGTH)
    assert_close(run(params, DEEPSEEK, batch), run(params, DEEPSEEK, batch, policy))


def test_names_keeps_latents_and_dots_the_heads_too() -> None:
    """Per layer and token: x, the latents (12 + 7 + 4), attention's output and its normalisers; dots adds queries, keys
    and values of 4 heads, the stream in the middle, gate and up."""

    def slope(policy: str) -> float:
        small, large = (compiled(config, 4, 128, policy).memory_analysis() for config in (WIDE, DEEP))
        return float(large.temp_size_in_bytes - small.temp_size_in_bytes) / (12 * 4 * 4 * 128)

    names = 64 + 23 + 4 * 5 + 4
    assert slope("names") == pytest.approx(names, rel=0.05)
    assert slope("dots") == pytest.approx(names + 4 * (10 + 10 + 5) + 64 + 2 * 176, rel=0.05)
    text = str(traced(DEEPSEEK, place(Layout.parse(dict(mesh=dict(one=1))), 1)))
    for name in {*NAMES, *DOTS} - {"query", "key", "value"}:
        assert f"name[name={name}]" in text, name


BAD: list[tuple[dict[str, Any], list[str]]] = [
    (dict(head_dim=8), ["model.head_dim", "6 + 4", "model.head_dim=10 would work"]),
    (dict(num_kv_heads=2), ["model.num_kv_heads", "4 query heads", "num_kv_heads=4 would work"]),
    (dict(positions="learned"), ["model.positions", "'rotary' would work"]),
    (dict(qk_norm=True), ["model.qk_norm", "False would work"]),
    (dict(attention_bias=True), ["model.attention_bias", "False would work"]),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[next(iter(change)) for change, _ in BAD])
def test_what_does_not_fit_is_an_error(change: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InputError) as error:
        replace(replace(DEEPSEEK, rope_scaling=None), **change)
    for part in said:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(rope_dim=5), "latent.rope_dim=6 would work"),
        (dict(kv_rank=0), "latent.kv_rank"),
        (dict(query_rank=-1), "latent.query_rank"),
    ],
)
def test_bad_sizes_of_the_latent(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        replace(LATENT, **change)


def test_a_row_of_embed_cuts_every_matrix() -> None:
    """ZeRO-3 is the one row embed: it holds for matrices that read a latent, too."""
    place = place_abstract(
        Layout.parse(dict(mesh=dict(data=2), rules=dict(batch="data"), params=dict(embed="data"))), 2
    )
    config = replace(DEEPSEEK, latent=replace(LATENT, query_rank=8, kv_rank=6))
    for path, spec in named_specs(describe(config)):
        whole = path.endswith(("query_norm/scale", "kv_norm/scale"))
        assert (local_shape(place, "params", spec) == spec.shape) == whole, path
