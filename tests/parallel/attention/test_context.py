"""Every scheme, order, mask, kind of heads and size of the context equals float64; and what shows that this bites."""

from collections.abc import Iterator
from importlib import import_module
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.errors import InputError
from meshtrain.layout.order import num_chunks, row_order
from meshtrain.parallel.attention import SCHEMES, Mask
from meshtrain.parallel.attention.march import March
from meshtrain.parallel.attention.ring import Ring, ring_forward
from meshtrain.parallel.attention.schedule import ring_schedule
from meshtrain.parallel.shard import on_shards
from tests.parallel.attention.context import MASK, WINDOW, T, attend_on, check, draw, placed, reference
from tests.parallel.references import assert_close, documents

RING = import_module("meshtrain.parallel.attention.ring")
HEADS = {"grouped": (8, 2), "one key head": (8, 1), "all": (8, 8)}
VALUES = {"grouped": 8, "one key head": 12, "all": 5}  # head size of values, as wide as the keys, wider, narrower
SIZES: dict[str, list[tuple[int, ...]]] = {
    "gather": [(2,), (4,), (8,)],
    "ring": [(2,), (4,), (8,)],
    "ulysses": [(2,), (4,), (8,)],
    "usp": [(2, 1), (2, 2), (4, 2), (2, 4)],
}
FAST = {
    ("ring", "zigzag", (8,), "grouped", None), ("ring", "contiguous", (4,), "one key head", 7),
    ("ring", "zigzag", (4,), "all", 7), ("gather", "zigzag", (4,), "grouped", None),
    ("gather", "contiguous", (8,), "all", 7), ("ulysses", "contiguous", (4,), "grouped", 7),
    ("ulysses", "contiguous", (8,), "one key head", None), ("usp", "zigzag", (2, 2), "grouped", None),
    ("usp", "contiguous", (4, 2), "one key head", 7),
}  # fmt: skip


def cases() -> Iterator[Any]:
    for scheme, sizes in SIZES.items():
        orders = ["contiguous"] if scheme == "ulysses" else ["contiguous", "zigzag"]  # a zigzag of whole rows is none
        for case in product([scheme], orders, sizes, HEADS, [None, 7]):
            yield pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow, id="-".join(map(str, case)))


@pytest.mark.parametrize(("scheme", "order", "sizes", "heads", "window"), list(cases()))
def test_equals_float64(scheme: str, order: str, sizes: tuple[int, ...], heads: str, window: int | None) -> None:
    """Causal, packed, padded rows in one batch; with the window also a soft-cap; values of other head sizes than keys.
    Case N3's documents, odd chunks."""
    check(placed(scheme, order, *sizes), *draw(*HEADS[heads], W=VALUES[heads]), WINDOW if window else MASK)


def test_the_cases_cover_every_scheme() -> None:
    assert set(SIZES) | {"local"} == set(SCHEMES)
    assert len(FAST) == sum(not case.marks for case in cases())


@pytest.mark.parametrize(
    ("scheme", "sizes"), [("ring", (4,)), ("gather", (4,)), ("ulysses", (2,)), ("usp", (2, 2))]
)  # fmt: skip
def test_with_heads_cut_too(scheme: str, sizes: tuple[int, ...]) -> None:
    """Case L3: two key heads on two devices of a tensor axis, one on two."""
    for num_kv_heads in (2, 1):
        check(placed(scheme, "zigzag", *sizes, tensor=2), *draw(8, num_kv_heads), MASK)


@pytest.mark.parametrize("scheme", ["ring", "gather", "ulysses"])
def test_axes_in_another_order_than_the_mesh(scheme: str) -> None:
    """The first axis of the row is the slowest, whatever the mesh; a permute over several axes counts otherwise."""
    place = placed(scheme, "zigzag", 2, 4)
    from meshtrain.layout import Layout, Placement

    declared = dict(
        mesh=dict(c0=2, c1=4), attention=scheme, order="zigzag", rules=dict(length=("c1", "c0")),
        activations=dict(stream=("c1", "c0")),
    )  # fmt: skip
    check(Placement(Layout.parse(declared), place.mesh), *draw(8, 2), MASK)


@pytest.mark.parametrize(("scheme", "order"), [("ring", "contiguous"), ("gather", "zigzag")])
def test_long_chunks_take_the_loops(scheme: str, order: str) -> None:
    """1,032 and 2,064 keys to a block: past the kernel's unrolled form, and no multiple of its tiles."""
    arrays, ids = draw(2, 1, [[900, 1, 1100]], length=2064)
    expected = reference(arrays, ids, MASK)
    for name, value in attend_on(placed(scheme, order, 2), arrays, ids, MASK).items():
        assert_close(value, expected[name], 4 * (2064 + 8), name, size=1)


def log_sum_exps(order: str, size: int, mask: Mask) -> tuple[Any, Any]:
    """The ring's log-sum-exp [B, N, T] and the reference's."""
    place = placed("ring", order, size)
    arrays, ids = draw(8, 2)
    columns = row_order(place, T)
    columns = np.arange(T) if columns is None else columns
    march = March(ring_schedule(*num_chunks(place), T, mask.window), ("c0",), tuple(place.axis_sizes.items()))

    def shard(q: Any, k: Any, v: Any, positions: Any, segments: Any) -> Any:
        return ring_forward(q, k, v, positions, segments, Ring(mask, march, 1 << 19))[1]

    spec = P(None, "c0")
    given = [jnp.asarray(x[:, columns]) for x in (*arrays[:3], *ids)]
    lse = jax.jit(on_shards(place, shard, (spec,) * 5, spec))(*given)
    expected = reference(arrays, ids, mask)["lse"]
    return np.asarray(lse)[:, np.argsort(columns)].swapaxes(1, 2), expected


@pytest.mark.parametrize(("order", "size"), [("zigzag", 4), pytest.param("contiguous", 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", [MASK, WINDOW])
def test_log_sum_exp(order: str, size: int, mask: Mask) -> None:
    lse, expected = log_sum_exps(order, size, mask)
    seen = np.isfinite(expected)
    assert_close(lse[seen], expected[seen], 4 * (T + 8), "lse", size=1)
    assert (lse[~seen] < -1e29).all()


def test_a_row_of_padding_has_no_nan_and_no_gradient() -> None:
    arrays, ids = draw(4, 2, [[], [8]])
    for value in attend_on(placed("ring", "zigzag", 4), arrays, ids, MASK).values():
        assert np.isfinite(value).all()
        assert not value[0].any()


# Each mutation is a mistake that rings are known for; the comparison must catch it.


def local_positions(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    return ids[0] % (T // 4), ids[1]


def wrong_permutation(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    send = March.send
    monkeypatch.setattr(March, "send", lambda self, tree, by: send(self, tree, -by))
    return ids


def keys_stay(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    monkeypatch.setattr(March, "send", lambda self, tree, by: tree)
    return ids


def no_merge(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    monkeypatch.setattr(RING, "merge", lambda out, lse, more, more_lse: (out + more, lse))
    return ids


def wrong_owner(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    monkeypatch.setattr(March, "home", lambda self, tree: tree)
    return ids


def only_own_gradients(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    put_keys = RING.Meeting.put_keys
    monkeypatch.setattr(RING.Meeting, "put_keys", lambda self, x, value: put_keys(self, x, jnp.zeros_like(value)))
    return ids


def another_order(monkeypatch: pytest.MonkeyPatch, ids: Any) -> Any:
    monkeypatch.setattr("tests.parallel.attention.context.row_order", lambda place, length: None)
    return ids


@pytest.mark.parametrize(
    ("mutate", "first"),
    [
        (local_positions, "out"), (wrong_permutation, "out"), (keys_stay, "out"), (no_merge, "out"),
        (another_order, "out"), (wrong_owner, "dk"), (only_own_gradients, "dk"),
    ],
)  # fmt: skip
def test_mutations_are_caught(mutate: Any, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And by the first result that each makes wrong."""
    arrays, ids = draw(8, 2)
    given = mutate(monkeypatch, ids)
    found = attend_on(placed("ring", "zigzag", 4), arrays, given, MASK)
    expected = reference(arrays, ids, MASK)
    wrong = []
    for name in ("out", "dq", "dk", "dv"):
        try:
            assert_close(found[name], expected[name], 4 * (T + 8), name, size=1)
        except AssertionError:
            wrong.append(name)
    assert wrong
    assert wrong[0] == first


def bf16_error(num_shards: int) -> dict[str, float]:
    """The largest errors of a bf16 ring from float64 on the same (rounded) numbers."""
    rng = np.random.default_rng(1)
    arrays = tuple(
        np.asarray(jnp.asarray(rng.normal(size=(1, 128, n, 8)), jnp.bfloat16), np.float32) for n in (4, 2, 2, 4)
    )
    ids = documents([[128]], 128)
    expected = reference(arrays, ids, MASK)
    found = attend_on(placed("ring", "zigzag", num_shards), arrays, ids, MASK, jnp.bfloat16)
    rms = {name: np.sqrt(np.mean((np.float64(found[name]) - expected[name]) ** 2)) for name in found}
    return {name: float(value / np.sqrt(np.mean(expected[name] ** 2))) for name, value in rms.items()}


def test_bf16_error_does_not_grow_with_the_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial results in float32: from 2 to 8 devices by less than 1.5 times the error of one; in bf16 by more."""
    one, most = bf16_error(1), bf16_error(8)
    for name in one:
        assert most[name] < 1.5 * one[name], f"{name}: {most[name]:.2g} on 8 devices, {one[name]:.2g} on one"
    merge = RING.merge
    monkeypatch.setattr(
        RING, "merge", lambda *given: tuple(x.astype(jnp.bfloat16).astype(jnp.float32) for x in merge(*given))
    )
    assert bf16_error(8)["out"] > 1.5 * one["out"]


def test_heads_that_the_swap_does_not_divide() -> None:
    with pytest.raises(InputError, match=r"6 query heads of a device out over c0=4.*2 devices would work"):
        attend_on(placed("ulysses", "contiguous", 4), *draw(6, 2), MASK)
