"""Who gets which rows, in which order, and that each comes back: both exchanges over one, two and three axes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.parallel import on_shards
from meshtrain.parallel.experts.axes import ExpertAxes
from meshtrain.parallel.experts.dropless import Dropless
from meshtrain.parallel.experts.geometry import Geometry
from meshtrain.parallel.experts.slots import Slots
from tests.run.proofs import place_on

EXPERTS, TOP_K, TOKENS = 16, 3, 6  # tokens of a device
MESHES: dict[str, tuple[dict[str, int], Any]] = {
    "one axis": (dict(x=8), "x"),
    "slow and fast": (dict(a=2, b=4), ("a", "b")),
    "declared the other way": (dict(a=2, b=4), ("b", "a")),
    "three axes": (dict(a=2, b=2, c=2), ("a", "b", "c")),
    "copies beside": (dict(a=4, b=2), "b"),
}
FAST = "slow and fast"


@pytest.mark.parametrize("name", [FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in MESHES if n != FAST)])
@pytest.mark.parametrize("capacity", [None, 6], ids=["dropless", "slots"])
def test_every_pair_reaches_its_expert_and_comes_back(name: str, capacity: int | None) -> None:
    mesh, experts = MESHES[name]
    place = place_on(8, dict(mesh=mesh, rules=dict(batch=tuple(mesh), expert=experts)))
    axes = ExpertAxes.of(place, TOKENS)

    def shard(expert: jax.Array, keep: jax.Array, pair: jax.Array) -> tuple[jax.Array, jax.Array]:
        geometry = Geometry.of(place, axes, (1, TOKENS), EXPERTS, TOP_K, capacity, gpu=False)
        exchange: Any = Dropless(geometry) if capacity is None else Slots(geometry)
        routes = exchange.route(expert.reshape(-1), keep.reshape(-1))
        sent = exchange.send(routes, pair.reshape(-1, 1), 1)
        # A product with the number of the expert among the device's own says that each row met its own.
        number = jnp.arange(1.0, geometry.local + 1)[:, None, None]
        rows = sent if capacity else sent[: exchange.num_rows(len(geometry.hops))]  # (without those to spare)
        return rows, exchange.bring(routes, exchange.times(routes, sent, (number,))[:, 0])

    tokens = P(tuple(mesh))
    run = jax.jit(on_shards(place, shard, (tokens, tokens, tokens), (axes.row_spec, axes.row_spec)))
    rng = np.random.default_rng(0)
    at_random = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(8 * TOKENS)]).astype(np.int32)
    pair = np.arange(1, at_random.size + 1, dtype=np.float32).reshape(at_random.shape)  # 0: an empty row
    for expert in (at_random, np.broadcast_to(np.array([EXPERTS - 1, 0, 7], np.int32), at_random.shape)):
        keep = rng.random(expert.shape) < 0.8
        rows, back = run(expert, keep, pair)
        local = EXPERTS // place.size(axes.expert)
        np.testing.assert_array_equal(np.asarray(back).reshape(expert.shape), pair * (expert % local + 1) * keep)
        shards = {shard.device.id: np.asarray(shard.data)[:, 0] for shard in rows.addressable_shards}
        for device, found in shards.items():
            check_rows(
                device, found[found > 0].astype(int) - 1, expert.reshape(-1), keep.reshape(-1), mesh, axes.expert
            )


def check_rows(
    device: int, got: np.ndarray, expert: np.ndarray, keep: np.ndarray, mesh: dict[str, int], axes: tuple[str, ...]
) -> None:
    """The pairs `got`, in this order, are what the experts of this device must get."""
    here = _at(device, mesh)
    sizes = [mesh[axis] for axis in axes]
    number, local = int(np.ravel_multi_index([here[axis] for axis in axes], sizes)), EXPERTS // int(np.prod(sizes))
    assert set(expert[got] // local) <= {number}  # rows of this device's experts only,
    np.testing.assert_array_equal(expert[got], np.sort(expert[got]))  # expert by expert;
    group = [d for d in range(8) if all(_at(d, mesh)[axis] == here[axis] for axis in mesh if axis not in axes)]
    sent = np.isin(np.arange(expert.size) // (TOKENS * TOP_K), group) & keep
    assert len(got) == (sent & (expert // local == number)).sum()  # all of them, so that loads are spread


def _at(device: int, mesh: dict[str, int]) -> dict[str, int]:
    return dict(zip(mesh, map(int, np.unravel_index(device, tuple(mesh.values()))), strict=True))
