"""Cross-entropy of the next token, a chunk of tokens at a time: the logits of all tokens never exist together.

Where a gradient is asked for, the forward pass computes it too, for a loss whose own gradient is 1, so that each
chunk's logits are computed once and then forgotten: three matrix products in all. The backward pass only scales.
Statistics are float32, and logits enter them less their largest, so that logits of 1e4 cost no precision.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from meshtrain.layout import Placement
from meshtrain.parallel.shard import on_shards
from meshtrain.parallel.tokens import TokenAxes, join_parts

HIDDEN = -1e30  # the logit of a padding row: finite, so that no NaN can arise
SMALLEST_CHUNK, LARGEST_CHUNK = 512, 2048  # tokens whose logits exist together on a device


class LossSums(NamedTuple):
    """Float32 sums over the counted tokens of a (micro)batch: loss = ce + z. Only `loss_sum` carries a gradient."""

    loss_sum: jax.Array
    ce_sum: jax.Array
    z_sum: jax.Array
    num_tokens: jax.Array


class Loss(NamedTuple):
    """What the loss is, all of it static."""

    num_vocab: int
    softcap: float | None
    z_loss: float


def cross_entropy(
    x_BTD: Float[Array, "B T D"],
    table_VD: Float[Array, "V D"],
    labels_BT: Int[Array, "B T"],
    *,
    num_vocab: int,
    softcap: float | None = None,
    z_loss: float = 0.0,
    place: Placement,
) -> LossSums:
    """Sums over tokens with label >= 0 of ce = LSE - logit[label] and z = z_loss * LSE^2 (in nats), logits = x . row.

    `table_VD` (an output matrix, or the embedding table) is as `place.at_use` gives it; its rows from num_vocab on are
    padding, with no probability and no gradient. softcap: logits become softcap * tanh(logits / softcap).
    """
    sums = _sums(x_BTD, table_VD, labels_BT, Loss(num_vocab, softcap, z_loss), place)
    return LossSums(sums[0], *(lax.stop_gradient(x) for x in sums[1:]))


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _sums(x_BTD: jax.Array, table_VD: jax.Array, labels_BT: jax.Array, loss: Loss, place: Placement) -> jax.Array:
    axes = TokenAxes.of(place, labels_BT.shape[1])

    def shard(x: jax.Array, table: jax.Array, labels: jax.Array) -> jax.Array:
        chunks = _chunks(x, labels)

        def add(sums: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return sums + _Chunk(*chunk, table, loss, axes).sums(), None

        return _over_tokens(lax.scan(add, jnp.zeros(4, jnp.float32), chunks)[0], axes)

    in_specs = axes.tokens, axes.table, axes.tokens
    return on_shards(place, shard, in_specs, PartitionSpec())(x_BTD, table_VD, labels_BT)


def _forward(
    x_BTD: jax.Array, table_VD: jax.Array, labels_BT: jax.Array, loss: Loss, place: Placement
) -> tuple[jax.Array, tuple[Any, ...]]:
    axes = TokenAxes.of(place, labels_BT.shape[1])

    def shard(x: jax.Array, table: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
        x_NCD, labels_NC = _chunks(x, labels)

        def add(carry: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, ...]) -> tuple[tuple[Any, ...], jax.Array]:
            sums, dtable_DV = carry
            x_CD, x_DC, labels_C = chunk
            here = _Chunk(x_CD, labels_C, table, loss, axes)
            dlogits_CV = here.dlogits()
            dx_CD = _dot(dlogits_CV, table, 1, 0).astype(x.dtype)
            return (sums + here.sums(), dtable_DV + _dot(x_DC, dlogits_CV, 1, 0)), dx_CD

        # The gradient of the table is summed as [D, V], from a transposed copy of x: on a CPU products whose left side
        # must be transposed run at a third of the speed, and x is small.
        start = jnp.zeros(4, jnp.float32), jnp.zeros(table.shape[::-1], jnp.float32)
        (sums, dtable_DV), dx_NCD = lax.scan(add, start, (x_NCD, x_NCD.swapaxes(1, 2), labels_NC))
        dx = dx_NCD.reshape(-1, x.shape[-1])[: labels.size].reshape(x.shape)
        return _over_tokens(sums, axes), axes.sum_over_vocab(dx, place), dtable_DV[None]

    in_specs = axes.tokens, axes.table, axes.tokens
    parts_DV = PartitionSpec(axes.parts[0], None, axes.parts[1])
    sums, dx_BTD, parts_DV = on_shards(place, shard, in_specs, (PartitionSpec(), axes.stream, parts_DV))(
        x_BTD, table_VD, labels_BT
    )
    return sums, (dx_BTD, parts_DV, table_VD)


def _backward(loss: Loss, place: Placement, kept: tuple[Any, ...], dsums: jax.Array) -> tuple[Any, ...]:
    dx_BTD, parts_DV, table_VD = kept
    scale = dsums[0]
    # Scaled in float32, and only then rounded to the dtype in which the parts are summed over devices.
    parts_VD = (parts_DV * scale).astype(table_VD.dtype).swapaxes(1, 2)
    return (dx_BTD * scale).astype(dx_BTD.dtype), join_parts(parts_VD), None


_sums.defvjp(_forward, _backward)


class _Chunk:
    """The softmax of one chunk of tokens over this device's part of the vocabulary."""

    def __init__(self, x_CD: jax.Array, labels_C: jax.Array, table_VD: jax.Array, loss: Loss, axes: TokenAxes):
        self.loss, self.dtype = loss, x_CD.dtype
        self.counted = (labels_C >= 0).astype(jnp.float32)
        first = axes.first_row(table_VD)
        self.label = labels_C - first
        raw_CV = _dot(x_CD, table_VD, 1, 1)
        self.logits_CV = logits_CV = _cap(raw_CV, loss)
        self.column = lax.broadcasted_iota(jnp.int32, raw_CV.shape, 1)
        rows_everywhere = table_VD.shape[0] * _size(axes)
        if loss.num_vocab < rows_everywhere:
            real = self.column < loss.num_vocab - first
            logits_CV = jnp.where(real, logits_CV, HIDDEN)
        largest = logits_CV.max(1)
        self.largest = lax.pmax(largest, axes.vocab) if axes.vocab else largest
        self.exp_CV = jnp.exp(logits_CV - self.largest[:, None])
        owned = (self.label >= 0) & (self.label < table_VD.shape[0])
        place = jnp.clip(self.label, 0, table_VD.shape[0] - 1)
        picked = _cap(jnp.take_along_axis(raw_CV, place[:, None], 1)[:, 0], loss) - self.largest
        both = jnp.stack([self.exp_CV.sum(1), jnp.where(owned, picked, 0)])
        self.total, self.picked = lax.psum(both, axes.vocab) if axes.vocab else both

    @property
    def lse(self) -> jax.Array:
        """The log-sum-exp of each token's logits."""
        return self.largest + jnp.log(self.total)

    def sums(self) -> jax.Array:
        """[loss, ce, z, counted tokens] of the chunk."""
        ce = (jnp.log(self.total) - self.picked) * self.counted
        z = self.loss.z_loss * jnp.square(self.lse) * self.counted
        return jnp.stack([(ce + z).sum(), ce.sum(), z.sum(), self.counted.sum()])

    def dlogits(self) -> jax.Array:
        """d loss / d logits before the cap: softmax - onehot + 2 z LSE softmax, in the dtype of x."""
        weight = self.counted * (1 + 2 * self.loss.z_loss * self.lse) / self.total
        onehot = jnp.where(self.column == self.label[:, None], self.counted[:, None], 0)
        d = self.exp_CV * weight[:, None] - onehot
        if self.loss.softcap is not None:
            d = d * (1 - jnp.square(self.logits_CV / self.loss.softcap))
        return d.astype(self.dtype)


def num_chunks(num_tokens: int, width: int) -> int:
    """Into how many chunks a device's tokens are cut.

    At most D tokens each, so that the logits of a chunk are no larger than the gradient of the table, which is there
    anyway and is read and written once for each chunk: fewer would make that traffic dear, more would only take memory.
    """
    return -(-num_tokens // min(max(width, SMALLEST_CHUNK), LARGEST_CHUNK))


def _chunks(x: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """This device's tokens in chunks of equal size: [chunks, C, D] and [chunks, C]."""
    num = num_chunks(labels.size, x.shape[-1])
    more = -labels.size % num
    x = jnp.pad(x.reshape(labels.size, -1), ((0, more), (0, 0)))
    labels = jnp.pad(labels.reshape(-1), (0, more), constant_values=-1)
    return x.reshape(num, -1, x.shape[-1]), labels.reshape(num, -1)


def _cap(logits: jax.Array, loss: Loss) -> jax.Array:
    return logits if loss.softcap is None else loss.softcap * jnp.tanh(logits / loss.softcap)


def _dot(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int) -> jax.Array:
    return lax.dot_general(x, y, (((x_dim,), (y_dim,)), ((), ())), preferred_element_type=jnp.float32)


def _over_tokens(sums: jax.Array, axes: TokenAxes) -> jax.Array:
    return lax.psum(sums, axes.token_axes) if axes.token_axes else sums


def _size(axes: TokenAxes) -> int:
    return lax.axis_size(axes.vocab) if axes.vocab else 1
