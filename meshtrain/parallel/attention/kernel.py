"""Which kernel computes a block of attention: cuDNN's flash attention where it can honour the mask, else our own.

"cudnn" that cannot honour what is asked is an error, never a silent replacement; "auto" says once what it chose.
"""

import logging
from functools import partial

import jax
import jax.numpy as jnp

from meshtrain.errors import InputError, nearest
from meshtrain.layout import Placement
from meshtrain.parallel.attention import block
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.shard import on_copies

KERNELS = ("auto", "cudnn", "xla")
GPU = ("gpu", "cuda")
GPU_SCORES = 1 << 26  # scores held at a time on a GPU, where one row would not fill the chip: 256 MB of float32

_announced: set[str] = set()


def choose_kernel(kernel: str, mask: Mask, place: Placement, dtype: jnp.dtype, head_dims: tuple[int, int]) -> str:
    """ "cudnn" or "xla" for "auto", or the one asked for; InputError where that one cannot honour mask or platform.

    head_dims: the head size of queries and keys, and that of values.
    """
    if kernel not in KERNELS:
        hint = nearest(kernel, KERNELS)
        raise InputError(f"kernel: there is no kernel {kernel!r}.{hint} One of: {' '.join(KERNELS)}.")
    reasons = cudnn_refusals(mask, platform_of(place), dtype, head_dims)
    if place.layout.attention in ("gather", "ring", "usp"):
        reasons.append(f"attention={place.layout.attention!r} computes with keys of other shards, which it cannot mask")
    if kernel == "cudnn" and reasons:
        raise InputError(f"kernel: 'cudnn' cannot be used: {'; '.join(reasons)}. kernel='xla' computes this.")
    chosen = kernel if kernel != "auto" else "xla" if reasons else "cudnn"
    if kernel == "auto" and platform_of(place) in GPU:
        why = f" (cudnn cannot be used: {'; '.join(reasons)})" if reasons else ""
        _announce(f"attention kernel: {chosen}{why}")
    return chosen


def cudnn_refusals(mask: Mask, platform: str, dtype: jnp.dtype, head_dims: tuple[int, int]) -> list[str]:
    """Why cuDNN's kernel cannot compute this; empty where it can."""
    found = []
    if platform not in GPU:
        found.append(f"it needs an NVIDIA GPU, and the mesh is of {platform or 'abstract'} devices")
    if mask.softcap is not None:
        found.append(f"it has no soft-cap of scores (softcap={mask.softcap})")
    if mask.packed:
        found.append("it does not keep the documents of a packed row apart (Mask.packed)")
    if dtype not in (jnp.bfloat16, jnp.float16):
        found.append(f"it computes in bfloat16 or float16, not {jnp.dtype(dtype).name}")
    if any(size % 8 or size > 128 for size in head_dims):
        found.append(f"its head_dim is a multiple of 8 up to 128, not {max(head_dims)}")
    return found


def platform_of(place: Placement) -> str:
    """What the mesh's devices are ("cpu", "gpu", ...), known while tracing; "" for a mesh without devices."""
    return place.platform


def scores_at_a_time(place: Placement) -> int:
    """How many scores the blockwise kernel holds at a time on these devices."""
    return GPU_SCORES if platform_of(place) in GPU else block.SCORES


def self_attention(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKW: jax.Array, positions_BT: jax.Array, segments_BT: jax.Array,
    mask: Mask, kernel: str, place: Placement, in_order: bool = True,
) -> jax.Array:  # fmt: skip
    """Attention of whole rows over themselves, on one device's arrays, by the kernel that was chosen.

    in_order: tokens stand in the order of the row, so that no query sees a key of a higher index; cuDNN needs it.
    """
    if kernel == "cudnn":
        # The kernel's own partitioner has no answer where an axis is left to the compiler.
        out_BTNW = on_copies(place, partial(_cudnn, mask=mask))(q_BTNH, k_BTKH, v_BTKW)
        return jnp.where((segments_BT != 0)[:, :, None, None], out_BTNW, 0)
    sides = (positions_BT, positions_BT, segments_BT, segments_BT)
    return block.block_attention(q_BTNH, k_BTKH, v_BTKW, *sides, mask, in_order, scores_at_a_time(place))


def _cudnn(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKW: jax.Array, mask: Mask) -> jax.Array:
    """cuDNN's flash attention. Rows are one document and then padding, so causal order alone hides the padding."""
    return jax.nn.dot_product_attention(
        q_BTNH, k_BTKH, v_BTKW, scale=mask.scale, is_causal=True, implementation="cudnn",
        local_window_size=None if mask.window is None else (mask.window - 1, 0),
    )  # fmt: skip


def _announce(text: str) -> None:
    if text not in _announced:
        _announced.add(text)
        logging.getLogger("meshtrain").info(text)
