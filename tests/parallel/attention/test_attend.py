"""`attend` under layouts: key heads that are fewer than their axes, documents, errors with their way out."""

from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Layout, Placement, place
from meshtrain.parallel.attention import Mask, attend
from tests.parallel.layouts import placed
from tests.parallel.references import assert_close, attention, documents

MODULE = import_module("meshtrain.parallel.attention.attend")
B, T, H = 8, 20, 8
ROWS = [[20], [9, 1, 8], [-3, 17], []] * 2
MASK = Mask(H**-0.5, window=6, softcap=2.0)


def make(N: int, K: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=(B, T, heads, H)), jnp.float32) for heads in (N, K, K, N)]
    return tuple(arrays), documents(ROWS, T)


def run(place: Placement, arrays: tuple[Any, ...], rows: tuple[Any, Any], mask: Mask = MASK) -> dict[str, Any]:
    positions, segments = (jnp.asarray(x) for x in rows)

    @jax.jit
    def both(q: Any, k: Any, v: Any, dout: Any) -> dict[str, Any]:
        q = place.constrain(q, "batch", "length", "heads", "head_dim")
        k, v = (place.constrain(x, "batch", "length", "kv_heads", "head_dim") for x in (k, v))
        out, pull = jax.vjp(
            lambda *qkv: attend(*qkv, positions_BT=positions, segments_BT=segments, mask=mask, place=place), q, k, v
        )
        return dict(zip(("out", "dq", "dk", "dv"), (out, *pull(dout)), strict=True))

    return both(*arrays)


def compare(found: dict[str, Any], arrays: tuple[Any, ...], rows: tuple[Any, Any], mask: Mask = MASK) -> None:
    positions, segments = rows
    expected = attention(*arrays, sides=(positions, positions, segments, segments), mask=mask)
    for name, value in found.items():  # as in test_block: roundings of numbers of order 1
        assert_close(value, expected[name], 4 * (T + H), name, size=1)


@pytest.mark.parametrize(
    ("name", "N", "K"),
    [
        ("single", 4, 2),
        ("batch", 4, 2),
        ("batch and vocab", 8, 8),
        ("batch and vocab", 8, 4),
        ("batch and vocab", 8, 2),  # one key head for two devices: half a group each
        ("batch and vocab", 8, 1),
        ("two axes, zero3", 8, 2),  # cut over the first axis, the same over the second
        ("an axis that nothing uses", 4, 1),
    ],
)
def test_every_layout_equals_float64(name: str, N: int, K: int) -> None:
    arrays, rows = make(N, K)
    compare(run(placed(name), arrays, rows), arrays, rows)


def test_the_wrong_key_heads_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, rows = make(8, 2)
    monkeypatch.setattr(MODULE, "shard_index", lambda axes: 0)
    with pytest.raises(AssertionError, match="off by"):
        compare(run(placed("batch and vocab"), arrays, rows), arrays, rows)


def refused(
    layout: dict[str, Any], N: int = 8, K: int = 4, kernel: str = "auto", mask: Mask = MASK, dtype: Any = jnp.float32
) -> str:
    """The text of the InputError of an attention that is only traced."""
    there = place(Layout.parse(layout))
    q, k = (jax.ShapeDtypeStruct((B, T, heads, H), dtype) for heads in (N, K))
    side = jax.ShapeDtypeStruct((B, T), jnp.int32)

    def traced(q: Any, k: Any, positions: Any, segments: Any) -> Any:
        return attend(
            q, k, k, positions_BT=positions, segments_BT=segments, mask=mask, place=there, kernel=kernel
        )  # fmt: skip

    with pytest.raises(InputError) as error:
        jax.eval_shape(traced, q, k, side, side)
    return str(error.value)


def test_errors_name_the_way_out() -> None:
    text = refused(dict(mesh=dict(rows=4, ring=2), rules=dict(batch="rows"), activations=dict(length="ring")))
    assert "'local'" in text
    assert "ring=2" in text
    text = refused(dict(mesh=dict(rows=2, cols=4), rules=dict(heads="cols", kv_heads="cols")), N=12, K=3)
    assert "kv_heads" in text
    assert "3" in text
    text = refused(dict(mesh=dict(rows=2, cols=4), rules=dict(heads="cols")), N=12, K=3)
    assert "cols=4" in text
    assert "3 key heads" in text
    text = refused(dict(mesh=dict(rows=8), rules=dict(batch="rows")), kernel="cudn")
    assert "Did you mean 'cudnn'?" in text


def test_cudnn_is_refused_not_replaced() -> None:
    layout = dict(mesh=dict(rows=8), rules=dict(batch="rows"))
    text = refused(layout, kernel="cudnn")
    for reason in ("cpu devices", "softcap=2.0", "packed", "float32", "kernel='xla'"):
        assert reason in text
    text = refused(layout, kernel="cudnn", mask=Mask(1.0, packed=False), dtype=jnp.bfloat16)
    assert "softcap" not in text
    assert "packed" not in text
    assert "cpu devices" in text
