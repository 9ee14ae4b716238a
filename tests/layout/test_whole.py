"""A stack of matrices, whole on each device and back in its parts: the same numbers, whether it divides or not."""

from typing import Any

import jax
import numpy as np
import pytest

from meshtrain.layout import ArraySpec
from meshtrain.layout.whole import WholeMatrices
from tests.run.proofs import place_on

CASES: dict[str, tuple[dict[str, Any], ArraySpec, tuple[int, ...], tuple[int, ...]]] = {
    "a stack that divides": (
        dict(mesh=dict(data=4), rules=dict(batch="data"), params=dict(embed="data")),
        ArraySpec((8, 12, 6), np.dtype(np.float32), ("layers", "embed", "mlp")), (1, 2), (1, 2, 12, 6),
    ),
    "filled up, over two axes": (
        dict(mesh=dict(data=2, tensor=2), rules=dict(batch="data", heads="tensor"), params=dict(embed="data")),
        ArraySpec((3, 4, 2, 12), np.dtype(np.float32), ("layers", "heads", "head_dim", "embed")), (1, 2, 3),
        (1, 1, 4, 2, 12),
    ),
    "stages keep their layers, experts their devices": (
        dict(
            mesh=dict(stage=2, expert=2, data=2), optimizer=dict(expert_embed="data"),
            rules=dict(batch=("expert", "data"), expert="expert", layers="stage"),
            pipeline=dict(schedule="1f1b", microbatches=2),
        ),
        ArraySpec((6, 4, 8, 6), np.dtype(np.float32), ("layers", "expert", "expert_embed", "expert_mlp")), (2, 3),
        (1, 2, 2, 8, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_whole_and_back(name: str) -> None:
    declared, spec, inner, local = CASES[name]
    place = place_on(int(np.prod(list(declared["mesh"].values()))), declared)
    whole = WholeMatrices(place, spec, inner)
    x = np.arange(spec.size, dtype=np.float32).reshape(spec.shape)
    stored = jax.device_put(x, place.sharding("optimizer", spec.dims, spec.shape))
    moved = jax.jit(whole.bring)(stored)
    assert moved.shape == whole.moved.shape
    assert {shard.data.shape for shard in moved.addressable_shards} == {local}
    assert local[-len(inner) :] == tuple(spec.shape[i] for i in inner)
    assert whole.moved.size == np.prod(local) * whole.num_devices
    back = jax.jit(lambda x: whole.take_back(whole.bring(x)))(stored)
    np.testing.assert_array_equal(back, x)
    assert (np.asarray(jax.jit(lambda x: whole.take_back(whole.bring(x)[:, ::-1]))(stored)) != x).any()


def test_what_is_whole_stays_as_it_is() -> None:
    place = place_on(4, dict(mesh=dict(data=4), rules=dict(batch="data")))
    whole = WholeMatrices(place, ArraySpec((3, 4, 5), np.dtype(np.float32), ("layers", "embed", "mlp")), (1, 2))
    x = jax.numpy.ones((3, 4, 5))
    assert whole.bring(x) is x
    assert whole.take_back(x) is x
