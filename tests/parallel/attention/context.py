"""Attention under context parallel layouts: rows with everything that goes wrong, dealt out as the host does it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.layout import Layout, Placement, build_mesh
from meshtrain.layout.order import row_order
from meshtrain.parallel.attention import Mask, attend
from tests.parallel.references import assert_close, attention, documents
from tests.quick import QUICK

T, H = 48, 8
# One document; one of a single token, one over three shards, and a fully padded shard; padding in front; only padding.
ROWS = [[48], [5, 1, 30], [-13, 17, 17], []]
MASK = Mask(H**-0.5)
WINDOW = Mask(H**-0.5, window=7, softcap=2.0)

Arrays = tuple[np.ndarray, ...]


def placed(attention: str, order: str, *sizes: int, tensor: int = 1) -> Placement:
    """The scheme over axes of these sizes, the first slowest."""
    axes = {f"c{i}": size for i, size in enumerate(sizes)}
    layout = Layout.parse(
        dict(
            mesh={**axes, "t": tensor}, attention=attention, order=order,
            rules=dict(length=tuple(axes), heads="t", kv_heads="t"), activations=dict(stream=tuple(axes)),
        )
    )  # fmt: skip
    sizes_now = layout.mesh.resolve(int(np.prod(sizes)) * tensor)
    return Placement(layout, build_mesh(sizes_now, jax.devices()[: int(np.prod(sizes)) * tensor]))


def draw(N: int, K: int, rows: list[list[int]] = ROWS, length: int = T, W: int = H) -> tuple[Arrays, Arrays]:
    """(q, k, v, dout), (positions, segments), in the order of the row; W: the head size of values."""
    rng = np.random.default_rng(0)
    sizes = (N, H), (K, H), (K, W), (N, W)
    arrays = tuple(rng.normal(size=(len(rows), length, *size)).astype(np.float32) for size in sizes)
    return arrays, documents(rows, length)


def attend_on(place: Placement, arrays: Arrays, ids: Arrays, mask: Mask, dtype: Any = jnp.float32) -> dict[str, Any]:
    """out, dq, dk, dv in the order of the row."""
    length = ids[0].shape[1]
    order = row_order(place, length)
    order = np.arange(length) if order is None else order

    def both(q: Any, k: Any, v: Any, dout: Any, positions: Any, segments: Any) -> tuple[Any, ...]:
        out, pull = jax.vjp(
            lambda *qkv: attend(*qkv, positions_BT=positions, segments_BT=segments, mask=mask, place=place), q, k, v
        )
        return (out, *pull(dout))

    given = [jnp.asarray(x[:, order], dtype) for x in arrays] + [jnp.asarray(x[:, order]) for x in ids]
    found = jax.jit(both).lower(*given).compile(compiler_options=QUICK)(*given)
    back = np.argsort(order)
    return {name: np.asarray(x)[:, back] for name, x in zip(("out", "dq", "dk", "dv"), found, strict=True)}


def check(place: Placement, arrays: Arrays, ids: Arrays, mask: Mask) -> None:
    """Equal to float64: 4 roundings for each term of the sums over keys and over a head, of numbers of order 1."""
    expected = reference(arrays, ids, mask)
    found = attend_on(place, arrays, ids, mask)
    for name, value in found.items():
        assert_close(value, expected[name], 4 * (ids[0].shape[1] + H), name, size=1)
        assert not value[ids[1] == 0].any(), f"{name} of padding is not 0"


def reference(arrays: Arrays, ids: Arrays, mask: Mask) -> dict[str, Any]:
    """out, lse, dq, dk, dv in float64."""
    q, k, v, dout = arrays
    return attention(q, k, v, dout, sides=(ids[0], ids[0], ids[1], ids[1]), mask=mask)
