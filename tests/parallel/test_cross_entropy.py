"""The loss against float64: sums, dx and dtable, any chunk and any layout, and at logits of 1e4."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.layout import Placement, single_placement
from meshtrain.parallel.cross_entropy import LossSums, cross_entropy
from tests.parallel.layouts import LAYOUTS, placed
from tests.parallel.references import assert_close, loss

MODULE = import_module("meshtrain.parallel.cross_entropy")  # by name it is the function of the same name
B, T, D, V, REAL = 4, 24, 16, 64, 57
OPTIONS: dict[str, dict[str, Any]] = dict(
    plain=dict(num_vocab=V),
    padded_vocabulary=dict(num_vocab=REAL),
    z_loss=dict(num_vocab=REAL, z_loss=1e-2),
    softcap=dict(num_vocab=REAL, softcap=3.0, z_loss=1e-2),
)


def make(seed: int = 0, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x, table, labels; a whole row, and some tokens of each other row, are not counted."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, REAL, (B, T)).astype(np.int32)
    labels[rng.random((B, T)) < 0.3] = -1
    labels[1] = -1
    x, table = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((B, T, D), (V, D)))
    return x, table, jnp.asarray(labels)


def run(
    place: Placement, x: Any, table: Any, labels: Any, upstream: float = 1.0, **options: Any
) -> tuple[LossSums, jax.Array, jax.Array]:
    """(sums, dx, dtable) of upstream * loss_sum."""

    def of(x: Any, table: Any, labels: Any) -> tuple[jax.Array, LossSums]:
        sums = cross_entropy(x, place.at_use(table, "vocab", "embed"), labels, place=place, **options)
        return upstream * sums.loss_sum, sums

    (_, sums), (dx, dtable) = jax.jit(jax.value_and_grad(of, (0, 1), has_aux=True))(x, table, labels)
    return sums, dx, dtable


def compare(found: tuple[LossSums, Any, Any], expected: dict[str, Any]) -> None:
    sums, dx, dtable = found
    # A logit is a sum of D products, a softmax one over V of them, a sum of losses one over B T: their roundings.
    for name, value in sums._asdict().items():
        assert_close(value, expected[name], D + V + B * T, name)
    assert_close(dx, expected["dx"], 4 * (D + V), "dx")
    assert_close(dtable, expected["dtable"], 4 * (D + V + B * T), "dtable")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("chunk", [1000, 7], ids=["one chunk", "chunks with a rest"])
def test_equals_float64(options: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "SMALLEST_CHUNK", chunk)
    monkeypatch.setattr(MODULE, "LARGEST_CHUNK", chunk)
    x, table, labels = make()
    expected = loss(x, table, labels, **options)
    found = run(single_placement(), x, table, labels, **options)
    compare(found, expected)
    evaluated = jax.jit(lambda *a: cross_entropy(*a, place=single_placement(), **options))(x, table, labels)
    np.testing.assert_array_equal(evaluated, found[0])
    assert not np.asarray(found[2])[options["num_vocab"] :].any(), "padding rows must have no gradient"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_equals_float64(name: str) -> None:
    options, (x, table, labels) = OPTIONS["softcap"], make()
    x, labels = (jnp.concatenate([a, a[::-1]]) for a in (x, labels))  # batch 8
    compare(run(placed(name), x, table, labels, **options), loss(x, table, labels, **options))


def test_scaled_by_what_comes_from_above() -> None:
    options, given = OPTIONS["z_loss"], make()
    _, dx, dtable = run(single_placement(), *given, upstream=-0.125, **options)
    _, dx_1, dtable_1 = run(single_placement(), *given, **options)
    np.testing.assert_array_equal(dx, -0.125 * dx_1)
    np.testing.assert_array_equal(dtable, -0.125 * dtable_1)


@pytest.mark.parametrize("name", ["single", "batch and vocab"])
def test_logits_of_1e4(name: str) -> None:
    """Rows of x pick one column of the table, so that logits are exact: what is left is the loss's own arithmetic."""
    rng = np.random.default_rng(0)
    num = 16
    table = rng.uniform(-1e4, 1e4, (V, num)).astype(np.float32)
    table[:, 0] = 1e4 + rng.normal(size=V)  # differences of order 1 at 1e4
    table[:, 1] = -1e4 + rng.normal(size=V)
    labels = rng.integers(0, V, (1, num)).astype(np.int32)
    labels[0, 2] = np.argmax(table[:, 2])  # a token that is certain
    x, labels = np.stack([np.eye(num, dtype=np.float32)] * 2), np.repeat(labels, 2, 0)
    options: dict[str, Any] = dict(num_vocab=V, z_loss=1e-4)
    expected = loss(x, table, labels, **options)
    sums, dx, dtable = run(placed(name), x, table, labels, **options)
    for name_of, value in sums._asdict().items():
        np.testing.assert_allclose(value, expected[name_of], rtol=1e-6)
    # dtable[v, i] is the sum over both rows of dlogits[i, v]: up to 1 + 2 z LSE = 3 in size
    np.testing.assert_allclose(dtable, expected["dtable"], rtol=1e-6, atol=1e-6)
    assert np.isfinite(dx).all()


def test_no_counted_token() -> None:
    x, table, labels = make()
    sums, dx, dtable = run(single_placement(), x, table, jnp.full_like(labels, -1), num_vocab=V, z_loss=1.0)
    assert [float(value) for value in sums] == [0, 0, 0, 0]
    assert not dx.any()
    assert not dtable.any()


def test_bfloat16_sums_in_float32() -> None:
    x, table, labels = make(dtype=jnp.bfloat16)
    expected = loss(x.astype(jnp.float32), table.astype(jnp.float32), labels, **OPTIONS["z_loss"])
    sums, dx, dtable = run(single_placement(), x, table, labels, **OPTIONS["z_loss"])
    assert {value.dtype for value in sums} == {jnp.dtype(jnp.float32)}
    assert dx.dtype == dtable.dtype == jnp.bfloat16
    for name, value in sums._asdict().items():  # products of bfloat16 are exact in float32
        assert_close(value, expected[name], D + V + B * T, name)
    for name, value in (("dx", dx), ("dtable", dtable)):  # d logits and the result are rounded once each
        assert_close(value, expected[name], 4, name, 2.0**-8)


def test_evaluation_makes_no_gradient_and_no_logits_of_all_tokens() -> None:
    tokens, vocab = 8192, 4096
    shapes = ((8, tokens // 8, 64), jnp.float32), ((vocab, 64), jnp.float32), ((8, tokens // 8), jnp.int32)
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    place = single_placement()

    def of(x: Any, table: Any, labels: Any) -> jax.Array:
        return cross_entropy(x, table, labels, num_vocab=vocab, place=place).loss_sum

    def cost(f: Any) -> tuple[int, float]:
        program = jax.jit(f).lower(*given).compile()
        memory, costs = program.memory_analysis(), program.cost_analysis()
        assert memory is not None
        assert costs is not None
        return memory.temp_size_in_bytes, costs["flops"]

    (evaluation, few), (training, many) = cost(of), cost(jax.grad(of, (0, 1)))
    logits = tokens * vocab * 4
    assert training < logits / 2
    assert evaluation < logits / 4
    # The cost counts the body of a loop once: one product in evaluation, three in training.
    product = 2 * MODULE.SMALLEST_CHUNK * vocab * 64
    assert product <= few < 1.5 * product
    assert 3 * product <= many < 4 * product


@pytest.mark.parametrize("collective", ["psum", "pmax"])
def test_a_dropped_collective_bites(collective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, (x, table, labels) = OPTIONS["z_loss"], make()
    monkeypatch.setattr(f"jax.lax.{collective}", lambda x, axes: x)
    with pytest.raises(AssertionError, match="off by"):
        compare(run(placed("batch and vocab"), x, table, labels, **options), loss(x, table, labels, **options))
