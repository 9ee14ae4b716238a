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
WIDEST, WIDEST_HOPPER = 128, 256  # head sizes that cuDNN's kernel takes
GPU_SCORES = 1 << 26  # scores held at a time on a GPU, where one row would not fill the chip: 256 MB of float32

_announced: set[str] = set()


def choose_kernel(kernel: str, mask: Mask, place: Placement, dtype: jnp.dtype, head_dims: tuple[int, int]) -> str:
    """ "cudnn" or "xla" for "auto", or the one asked for; InputError where that one cannot honour mask or platform.

    head_dims: the head size of queries and keys, and that of values.
    """
    if kernel not in KERNELS:
        hint = nearest(kernel, KERNELS)
        raise InputError(f"kernel: there is no kernel {kernel!r}.{hint} One of: {' '.join(KERNELS)}.")
    reasons = cudnn_refusals(mask, platform_of(place), dtype, head_dims, on_hopper(place))
    if place.layout.attention in ("gather", "ring", "usp"):
        reasons.append(f"attention={place.layout.attention!r} computes with keys of other shards, which it cannot mask")
    if kernel == "cudnn" and reasons:
        raise InputError(f"kernel: 'cudnn' cannot be used: {'; '.join(reasons)}. kernel='xla' computes this.")
    chosen = kernel if kernel != "auto" else "xla" if reasons else "cudnn"
    if kernel == "auto" and platform_of(place) in GPU:
        why = f" (cudnn cannot be used: {'; '.join(reasons)})" if reasons else ""
        _announce(f"attention kernel: {chosen}{why}")
    return chosen


def cudnn_refusals(
    mask: Mask, platform: str, dtype: jnp.dtype, head_dims: tuple[int, int], hopper: bool = False
) -> list[str]:
    """Why cuDNN's kernel cannot compute this; empty where it can. What is said of head_dim is JAX's own condition."""
    found = []
    if platform not in GPU:
        found.append(f"it needs an NVIDIA GPU, and the mesh is of {platform or 'abstract'} devices")
    if mask.softcap is not None:
        found.append(f"it has no soft-cap of scores (softcap={mask.softcap})")
    if mask.packed:
        found.append("it does not keep the documents of a packed row apart (Mask.packed)")
    if dtype not in (jnp.bfloat16, jnp.float16):
        found.append(f"it computes in bfloat16 or float16, not {jnp.dtype(dtype).name}")
    size, widest = max(head_dims), WIDEST_HOPPER if hopper else WIDEST
    if size % 8 or size > widest:
        more = "" if hopper else f" ({WIDEST_HOPPER} on this machine's own GPUs, from Hopper on)"
        found.append(f"its head_dim is a multiple of 8 up to {widest}{more}, not {size}")
    return found


def on_hopper(place: Placement) -> bool:
    """Whether the mesh is of GPUs of this machine that are Hopper or later: of GPUs that only the compiler knows JAX
    does not ask what they are."""
    if platform_of(place) not in GPU or jax.default_backend() not in GPU:
        return False
    device = place.mesh.devices.flat[0]
    return float(getattr(device, "compute_capability", "0")) >= 9


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
        return on_copies(place, partial(_cudnn, mask=mask))(q_BTNH, k_BTKH, v_BTKW)
    sides = (positions_BT, positions_BT, segments_BT, segments_BT)
    return block.block_attention(q_BTNH, k_BTKH, v_BTKW, *sides, mask, in_order, scores_at_a_time(place))


def _cudnn(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKW: jax.Array, mask: Mask) -> jax.Array:
    """cuDNN's flash attention. Rows are one document and then padding, so causal order alone hides the padding. What
    the padding itself gives is not set to 0: nobody sees it, and a masked copy would be kept beside the kernel's own.

    JAX asks for values as wide as keys, so the narrower of both are padded with zeros: in latent attention the values,
    from 128 to 192, at half as much again for their products.
    """
    size = max(q_BTNH.shape[-1], v_BTKW.shape[-1])
    q, k, v = (_widened(x, size) for x in (q_BTNH, k_BTKH, v_BTKW))
    out = jax.nn.dot_product_attention(
        q, k, v, scale=mask.scale, is_causal=True, implementation="cudnn",
        local_window_size=None if mask.window is None else (mask.window - 1, 0),
    )  # fmt: skip
    return out[..., : v_BTKW.shape[-1]]


def _widened(x: jax.Array, size: int) -> jax.Array:
    """x with zeros behind each head, up to this head size."""
    more = size - x.shape[-1]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, more))) if more else x


def _announce(text: str) -> None:
    if text not in _announced:
        _announced.add(text)
        logging.getLogger("meshtrain").info(text)
