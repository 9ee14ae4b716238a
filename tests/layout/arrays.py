"""A hand-written inventory of a small decoder, for tests of the layout floor, which knows no model."""

from typing import Any

import numpy as np

from meshtrain.layout import ArraySpec, Layout, Placement, place_abstract
from meshtrain.layout.check import check
from meshtrain.layout.finding import Finding
from meshtrain.layout.inventory import Inventory, Named

MESH = dict(data=2, tensor=4)
TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")


def array(dims: str, *shape: int, dtype: str = "float32") -> ArraySpec:
    return ArraySpec(shape, np.dtype(dtype), tuple(dims.split()))


def weights(embed: int = 64, heads: int = 8, kv_heads: int = 4, mlp: int = 128, vocab: int = 512) -> Named:
    return (
        ("embedding/table", array("vocab embed", vocab, embed)),
        ("layers/norm/scale", array("layers embed", 2, embed)),
        ("layers/attention/query", array("layers embed heads head_dim", 2, embed, heads, 8)),
        ("layers/attention/key", array("layers embed kv_heads head_dim", 2, embed, kv_heads, 8)),
        ("layers/mlp/up", array("layers embed mlp", 2, embed, mlp)),
    )


def inventory(batch: int = 16, length: int = 32, **sizes: int) -> Inventory:
    named = weights(**sizes)
    shapes = {dim: n for _, spec in named for dim, n in zip(spec.dims, spec.shape, strict=True)}
    embed, heads, kv_heads = (shapes[dim] for dim in ("embed", "heads", "kv_heads"))
    moments = tuple((f"{kind}/{path}", spec) for kind in ("params", "mu", "nu") for path, spec in named)
    activations = (
        ("residual", array("batch stream embed", batch, length, embed)),
        ("queries", array("batch length heads head_dim", batch, length, heads, 8)),
        ("keys", array("batch length kv_heads head_dim", batch, length, kv_heads, 8)),
    )
    tokens = (("tokens", array("batch length", batch, length, dtype="int32")),)
    return Inventory(params=named, grads=named, optimizer=moments, activations=activations, batch=tokens)


def placed(num_devices: int = 8, **declared: Any) -> Placement:
    return place_abstract(Layout.parse(declared, name="mine"), num_devices)


def findings(
    num_devices: int = 8, batch: int = 16, sizes: dict[str, int] | None = None, **declared: Any
) -> list[Finding]:
    fast_devices = declared.pop("fast_devices", None)
    arrays = inventory(batch=batch, **(sizes or {}))
    return check(placed(num_devices, **declared), arrays, batch, fast_devices)
