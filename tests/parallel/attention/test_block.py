"""The blockwise kernel against float64: masks, groups of heads, odd lengths; unrolled and looped; with gradients."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.parallel.attention import Mask, block, looped, tile, unrolled
from meshtrain.parallel.attention.block import block_attention, block_attention_backward, block_attention_forward
from meshtrain.parallel.attention.tile import EMPTY, merge
from tests.parallel.references import FLOAT32, assert_close, attention, documents

H = 8
ROWS = [[45], [20, 1, 9], [-6, 15, -3, 12], []]  # one document; packed; padding in front and between; all padding
MASKS = dict(
    causal=Mask(H**-0.5),
    window=Mask(H**-0.5, window=7),
    softcap=Mask(0.7, softcap=1.5),
    both=Mask(0.7, window=5, softcap=0.8),
)


@pytest.fixture(params=["unrolled", "looped"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small blocks, so that 45 tokens are several of them with a rest."""
    monkeypatch.setattr(unrolled, "QUERY_BLOCK", 16)
    monkeypatch.setattr(looped, "TILE_QUERIES", 8)
    monkeypatch.setattr(looped, "TILE_KEYS", 16)
    monkeypatch.setattr(block, "SHORT", 1 << 30 if request.param == "unrolled" else 0)
    return str(request.param)


def make(T: int, S: int, N: int, K: int, seed: int = 0, dtype: Any = jnp.float32, W: int = H) -> tuple[Any, ...]:
    """q, k, v, dout of four rows; W: the head size of values."""
    rng = np.random.default_rng(seed)
    shapes = (T, N, H), (S, K, H), (S, K, W), (T, N, W)
    return tuple(jnp.asarray(rng.normal(size=(len(ROWS), *shape)), dtype) for shape in shapes)


def runner(mask: Mask) -> Any:
    """Output and gradients through the custom VJP, rows two at a time."""

    @jax.jit
    def run(q: Any, k: Any, v: Any, dout: Any, *sides: Any) -> Any:
        scores = 4 * q.shape[2] * q.shape[1] * k.shape[1] // 2
        out, pull = jax.vjp(lambda q, k, v: block_attention(q, k, v, *sides, mask, True, scores), q, k, v)
        return dict(zip(("out", "dq", "dk", "dv"), (out, *pull(dout)), strict=True))

    return run


def compare(found: dict[str, Any], expected: dict[str, Any], S: int, eps: float = FLOAT32) -> None:
    # Sums over S keys of products of sums over H, some of them twice: 4 (S + H) roundings of numbers of order 1.
    for name, value in found.items():
        assert_close(value, expected[name], 4 * (S + H), name, eps, size=1)


@pytest.mark.parametrize(("mask", "K"), [("causal", 2), ("causal", 4), ("window", 1), ("softcap", 2), ("both", 1)])
def test_equals_float64(path: str, mask: str, K: int) -> None:
    """K of 4 heads: grouped, one for each query head, one for all."""
    T = 45
    arrays = make(T, T, 4, K)
    positions, segments = documents(ROWS, T)
    sides = positions, positions, segments, segments
    found = runner(MASKS[mask])(*arrays, *sides)
    compare(found, attention(*arrays, sides=sides, mask=MASKS[mask]), T)
    padding = segments == 0
    assert not np.asarray(found["out"])[padding].any(), "padding must give exactly 0"
    for name in ("dq", "dk", "dv"):
        assert not np.asarray(found[name])[padding].any(), f"padding must have {name} exactly 0"


@pytest.mark.parametrize("W", [5, 12])
def test_values_of_another_head_size(path: str, W: int) -> None:
    """Narrower and wider than queries and keys."""
    T = 45
    arrays = make(T, T, 4, 2, W=W)
    positions, segments = documents(ROWS, T)
    sides = positions, positions, segments, segments
    found = runner(MASKS["both"])(*arrays, *sides)
    assert found["out"].shape[-1] == found["dv"].shape[-1] == W
    compare(found, attention(*arrays, sides=sides, mask=MASKS["both"]), T)


@pytest.mark.parametrize("T", [1, 17])
def test_lengths_at_the_edges_of_blocks(path: str, T: int) -> None:
    arrays = make(T, T, 2, 1)
    positions, segments = documents([[T], [T // 2, T - T // 2] if T > 1 else [1], [], [-(T // 2), T - T // 2]], T)
    sides = positions, positions, segments, segments
    compare(runner(MASKS["causal"])(*arrays, *sides), attention(*arrays, sides=sides, mask=MASKS["causal"]), T)


def test_keys_of_three_shards_in_any_order(path: str) -> None:
    """What a ring does: each shard's share by itself, merged by log-sum-exp; gradients add up. Queries are shuffled."""
    mask, T, S, parts = MASKS["both"], 20, 45, (slice(0, 10), slice(10, 31), slice(31, 45))
    q, k, v, dout = make(T, S, 4, 2)
    k_positions, k_segments = documents(ROWS, S)
    chosen = np.random.default_rng(1).permutation(S)[:T]
    q_positions, q_segments = k_positions[:, chosen], k_segments[:, chosen]
    expected = attention(q, k, v, dout, sides=(q_positions, k_positions, q_segments, k_segments), mask=mask)

    def names(part: slice) -> dict[str, Any]:
        return dict(
            q_positions_BT=jnp.asarray(q_positions), k_positions_BS=jnp.asarray(k_positions[:, part]),
            q_segments_BT=jnp.asarray(q_segments), k_segments_BS=jnp.asarray(k_segments[:, part]),
        )  # fmt: skip

    forward = jax.jit(partial(block_attention_forward, mask=mask, dtype=jnp.float32))
    shares = [forward(q, k[:, part], v[:, part], **names(part)) for part in parts]
    out, lse = shares[0][0].swapaxes(1, 2), shares[0][1]
    for more_out, more_lse in shares[1:]:
        out, lse = merge(out, lse, more_out.swapaxes(1, 2), more_lse)
    out = out.swapaxes(1, 2)
    backward = jax.jit(partial(block_attention_backward, mask=mask, dtype=jnp.float32))
    grads = [backward(q, k[:, part], v[:, part], out, lse, dout, **names(part)) for part in parts]
    found = dict(
        out=out, dq=sum(dq for dq, _, _ in grads), dk=jnp.concatenate([dk for _, dk, _ in grads], 1),
        dv=jnp.concatenate([dv for _, _, dv in grads], 1),
    )  # fmt: skip
    compare(found, expected, S)
    nothing = np.isneginf(expected["lse"])
    assert nothing.any()
    assert (np.asarray(lse)[nothing] <= EMPTY).all()
    assert_close(np.where(nothing, 0, lse), np.where(nothing, 0, expected["lse"]), 4 * (S + H), "lse")
    wrong = shares[0][0] + shares[1][0] + shares[2][0]  # the merge is not a plain sum
    assert np.abs(np.asarray(wrong, np.float64) - expected["out"]).max() > 1e-2


def test_bfloat16_keeps_float32_statistics(path: str) -> None:
    T, mask = 45, MASKS["causal"]
    arrays = make(T, T, 4, 2, dtype=jnp.bfloat16)
    positions, segments = documents(ROWS, T)
    sides = positions, positions, segments, segments
    found, expected = runner(mask)(*arrays, *sides), attention(*arrays, sides=sides, mask=mask)
    assert all(value.dtype == jnp.bfloat16 for value in found.values())
    # p, ds and the results are rounded once each to 8 bits; sums are float32, so the error does not grow with T.
    for name, value in found.items():
        assert_close(value, expected[name], 4, name, 2.0**-8)


def test_large_scores_stay_finite(path: str) -> None:
    """Scores of +-1e4, as an untrained or diverging model gives them."""
    T, mask = 45, Mask(300.0)
    arrays = make(T, T, 2, 2)
    positions, segments = documents(ROWS, T)
    sides = positions, positions, segments, segments
    found = runner(mask)(*arrays, *sides)
    assert all(np.isfinite(value).all() for value in found.values())
    # A score of 1e4 has an error of 1e4 * eps; it enters p as a factor.
    assert_close(found["out"], attention(*arrays, sides=sides, mask=mask)["out"], 4 * 10**4, "out")


def test_one_document_does_not_reach_another(path: str) -> None:
    """EQ: nothing of the first document, not even NaN in its values, changes the second."""
    T = 45
    q, k, v, dout = make(T, T, 2, 1)
    positions, segments = documents([[20, 25]] * len(ROWS), T)
    sides = positions, positions, segments, segments
    run = runner(MASKS["causal"])
    one = run(q, k, v, dout, *sides)
    two = run(q.at[:, 3].add(1), k.at[:, 5].add(2), v.at[:, 7].add(3), dout, *sides)
    for name in one:
        np.testing.assert_array_equal(one[name][:, 20:], two[name][:, 20:])
        assert np.abs(one[name][:, :20] - two[name][:, :20]).max() > 1e-2


def test_only_needed_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of key tiles per tile of queries, and a count by hand: 64 tokens, tiles of 16 keys."""
    monkeypatch.setattr(looped, "TILE_KEYS", 16)

    def ranges(lengths: list[int], window: int | None = None) -> list[tuple[int, int]]:
        positions, segments = (jnp.asarray(x) for x in documents([lengths], 64))
        keys = tile.Keys.of(positions, segments)
        tiles = [tile.Queries(positions[:, i : i + 16], segments[:, i : i + 16]) for i in range(0, 64, 16)]
        found = [looped.needed_tiles(queries, keys, Mask(1.0, window=window)) for queries in tiles]
        return [(int(first), int(end)) for first, end in found]

    assert ranges([64]) == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert ranges([32, 32]) == [(0, 1), (0, 2), (2, 3), (2, 4)]
    assert ranges([64], window=16) == [(0, 1), (0, 2), (1, 3), (2, 4)]
    assert ranges([32, -16, 16]) == [(0, 1), (0, 2), (0, 0), (3, 4)]


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [
        (looped, "needed_tiles", lambda queries, keys, mask: (0, 1)),
        (looped, "merge", lambda out, lse, more, more_lse: (out + more, lse)),
        (tile, "_seen", lambda queries, keys, mask: queries[0] > keys[0]),
        (tile, "_cap", lambda s, mask: s),
    ],
    ids=["a tile left out", "no merge by log-sum-exp", "documents see each other", "no soft-cap"],
)
def test_mutations_bite(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, wrong: Any) -> None:
    T, mask = 45, MASKS["softcap"]
    monkeypatch.setattr(block, "SHORT", 0)
    monkeypatch.setattr(looped, "TILE_KEYS", 16)
    monkeypatch.setattr(where, name, wrong)
    arrays = make(T, T, 4, 2)
    positions, segments = documents(ROWS, T)
    sides = positions, positions, segments, segments
    with pytest.raises(AssertionError, match=r"off by|not finite"):
        compare(runner(mask)(*arrays, *sides), attention(*arrays, sides=sides, mask=mask), T)


def test_memory_is_linear_and_the_program_of_one_size() -> None:
    """Compiled only: temporary bytes of forward and backward at four times the length, and the size of the program."""

    def compiled(T: int) -> tuple[int, int]:
        q, k = (jax.ShapeDtypeStruct((1, T, heads, 16), jnp.float32) for heads in (4, 2))
        side = jax.ShapeDtypeStruct((1, T), jnp.int32)

        def run(q: Any, k: Any, v: Any, positions: Any, segments: Any) -> Any:
            sides = positions, positions, segments, segments
            out, pull = jax.vjp(lambda *qkv: block_attention(*qkv, *sides, Mask(0.25), True), q, k, v)
            return pull(out)

        program = jax.jit(run).lower(q, k, k, side, side).compile()
        memory, text = program.memory_analysis(), program.as_text()
        assert memory is not None
        assert text is not None
        return memory.temp_size_in_bytes, len(text)

    (short, small), (long, large) = compiled(16384), compiled(65536)
    assert long <= 4.1 * short
    assert large <= 1.1 * small
    scores_of_all = 4 * 65536**2 * 4
    assert long < scores_of_all / 100
