"""The scheme "local": every row lies whole on its device, so queries reach all their keys without any collective."""

import jax

from meshtrain.errors import InputError
from meshtrain.layout import Placement
from meshtrain.parallel.attention.kernel import self_attention
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.shard import free_axes


def local(
    q_BTnH: jax.Array, k_BTkH: jax.Array, v_BTkW: jax.Array, positions_BT: jax.Array, segments_BT: jax.Array,
    *, mask: Mask, kernel: str, place: Placement,
) -> jax.Array:  # fmt: skip
    """out_BTnW of this device's rows and heads."""
    return self_attention(q_BTnH, k_BTkH, v_BTkW, positions_BT, segments_BT, mask, kernel, place)


def check_local(place: Placement, others: list[str]) -> None:
    """InputError where the layout cuts the length: the keys of other shards would be out of reach."""
    axes = free_axes(place, "length")
    if not axes:
        return
    exchange = f"attention={' or '.join(repr(name) for name in others)} would work, or a" if others else "A"
    raise InputError(
        f"attention: 'local' reaches only the keys on its own device, but the length is cut over {place.text(axes)}"
        f" (rules.length). {exchange} layout without the row `length` would work."
    )
