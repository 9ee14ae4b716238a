"""Attention and the loss in numpy and float64, with their gradients, written from the formulas and for every mask."""

from typing import Any

import numpy as np

from meshtrain.parallel.attention import Mask

Array = np.ndarray[Any, Any]
FLOAT32 = float(np.finfo(np.float32).eps)


def attention(q: Any, k: Any, v: Any, dout: Any, *, sides: tuple[Any, Any, Any, Any], mask: Mask) -> dict[str, Array]:
    """out, lse (-inf where nothing is seen), dq, dk, dv; sides: positions of q, of k, segments of q, of k."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q, k, v, dout))
    q_positions, k_positions, q_segments, k_segments = (np.asarray(x) for x in sides)
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    ahead = q_positions[:, :, None] - k_positions[:, None, :]
    seen = (q_segments[:, :, None] == k_segments[:, None, :]) & (q_segments[:, :, None] != 0) & (ahead >= 0)
    if mask.window is not None:
        seen &= ahead < mask.window
    raw = mask.scale * np.einsum("btnh,bsnh->bnts", q, k)
    capped = raw if mask.softcap is None else mask.softcap * np.tanh(raw / mask.softcap)
    scores = np.where(seen[:, None], capped, -np.inf)
    largest = np.maximum(scores.max(-1, keepdims=True), -1e30)
    exp = np.exp(scores - largest)
    total = exp.sum(-1, keepdims=True)
    p = exp / np.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[..., 0]
    out = np.einsum("bnts,bsnh->btnh", p, v)
    dp = np.einsum("btnh,bsnh->bnts", dout, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True))
    if mask.softcap is not None:
        ds = ds * (1 - np.tanh(raw / mask.softcap) ** 2)
    ds = ds * mask.scale
    dk, dv = np.einsum("bnts,btnh->bsnh", ds, q), np.einsum("bnts,btnh->bsnh", p, dout)
    dk, dv = (x.reshape(*x.shape[:2], -1, group, x.shape[-1]).sum(3) for x in (dk, dv))
    return dict(out=out, lse=lse, dq=np.einsum("bnts,bsnh->btnh", ds, k), dk=dk, dv=dv)


def loss(
    x: Any, table: Any, labels: Any, *, num_vocab: int, softcap: float | None = None, z_loss: float = 0.0
) -> dict[str, Array]:
    """The four sums, dx and dtable."""
    x, table, labels = np.asarray(x, np.float64), np.asarray(table, np.float64), np.asarray(labels)
    raw = x @ table[:num_vocab].T
    logits = raw if softcap is None else softcap * np.tanh(raw / softcap)
    largest = logits.max(-1, keepdims=True)
    exp = np.exp(logits - largest)
    total = exp.sum(-1, keepdims=True)
    lse = (largest + np.log(total))[..., 0]
    counted = (labels >= 0).astype(np.float64)
    onehot = np.eye(num_vocab)[np.maximum(labels, 0)]
    # LSE less the label's logit, each less the largest first: in float64 it hardly matters, at 1e4 it does in float32.
    ce = (np.log(total[..., 0]) - ((logits - largest) * onehot).sum(-1)) * counted
    z = z_loss * lse**2 * counted
    d = (exp / total * (1 + 2 * z_loss * lse)[..., None] - onehot) * counted[..., None]
    if softcap is not None:
        d = d * (1 - np.tanh(raw / softcap) ** 2)
    dtable = np.zeros_like(table)
    dtable[:num_vocab] = np.einsum("btv,btd->vd", d, x)
    return dict(
        loss_sum=(ce + z).sum(), ce_sum=ce.sum(), z_sum=z.sum(), num_tokens=counted.sum(), dlogits=d,
        dx=d @ table[:num_vocab], dtable=dtable,
    )  # fmt: skip


def documents(lengths: list[list[int]], T: int) -> tuple[Array, Array]:
    """(positions, segments) of rows of documents; a negative length is padding, and so is what is left of T."""
    positions, segments = np.zeros((len(lengths), T), np.int32), np.zeros((len(lengths), T), np.int32)
    for row, row_lengths in enumerate(lengths):
        start = 0
        for number, length in enumerate(row_lengths, 1):
            end = start + abs(length)
            if length > 0:
                positions[row, start:end], segments[row, start:end] = np.arange(length), number
            start = end
        assert start <= T
    return positions, segments


def assert_close(actual: Any, expected: Any, terms: int, what: str, eps: float = FLOAT32, size: float = 0.0) -> None:
    """Equal within `terms` units of the largest element (or of terms of this `size`, where they cancel)."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    assert np.isfinite(actual).all(), f"{what}: not finite"
    bound = terms * eps * max(np.abs(expected).max(), size)
    worst = np.abs(actual - expected).max()
    assert worst <= bound, f"{what}: off by {worst:.3g}, allowed is {bound:.3g}"
