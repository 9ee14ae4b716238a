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


@pytest.mark.parametrize("name", MESHES)
@pytest.mark.parametrize("capacity", [None, 6], ids=["dropless", "slots"])
@pytest.mark.parametrize("routing", ["random", "all to one"])
def test_every_pair_reaches_its_expert_and_comes_back(name: str, capacity: int | None, routing: str) -> None:
    mesh, experts = MESHES[name]
    place = place_on(8, dict(mesh=mesh, rules=dict(batch=tuple(mesh), expert=experts)))
    axes = ExpertAxes.of(place, TOKENS)
    rng = np.random.default_rng(0)
    expert = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(8 * TOKENS)]).astype(np.int32)
    if routing == "all to one":
        expert[:] = [EXPERTS - 1, 0, 7]
    keep = rng.random(expert.shape) < 0.8
    pair = np.arange(1, expert.size + 1, dtype=np.float32).reshape(expert.shape)  # 0: an empty row

    def shard(expert: jax.Array, keep: jax.Array, pair: jax.Array) -> tuple[jax.Array, jax.Array]:
        geometry = Geometry.of(place, axes, (1, TOKENS), EXPERTS, TOP_K, capacity, gpu=False)
        exchange: Any = Dropless(geometry) if capacity is None else Slots(geometry)
        routes = exchange.route(expert.reshape(-1), keep.reshape(-1))
        rows = exchange.send(routes, pair.reshape(-1, 1), 1)
        # A product with the number of the expert among the device's own says that each row met its own.
        number = jnp.arange(1.0, geometry.local + 1)[:, None, None]
        return rows, exchange.bring(routes, exchange.times(routes, rows, number))

    tokens = P(tuple(mesh))
    rows, back = on_shards(place, shard, (tokens, tokens, tokens), (axes.row_spec, axes.row_spec))(expert, keep, pair)
    local = EXPERTS // place.size(axes.expert)
    np.testing.assert_array_equal(np.asarray(back).reshape(expert.shape), pair * (expert % local + 1) * keep)

    shards = {shard.device.id: np.asarray(shard.data)[:, 0] for shard in rows.addressable_shards}
    order = [list(mesh).index(axis) for axis in axes.expert]
    for device, found in shards.items():
        at = np.unravel_index(device, tuple(mesh.values()))
        number = int(np.ravel_multi_index([at[i] for i in order], [list(mesh.values())[i] for i in order]))
        got = found[found > 0].astype(int) - 1
        mine = expert.reshape(-1)[got]
        assert set(mine // local) <= {number}  # rows of this device's experts only,
        np.testing.assert_array_equal(mine, np.sort(mine))  # expert by expert;
        beside = [axis for axis in mesh if axis not in axes.expert]
        group = [d for d in range(8) if all(_at(d, mesh)[axis] == _at(device, mesh)[axis] for axis in beside)]
        sent = np.isin(np.arange(expert.size) // (TOKENS * TOP_K), group) & keep.reshape(-1)
        assert len(got) == (sent & (expert.reshape(-1) // local == number)).sum()  # all of them, so loads are spread


def _at(device: int, mesh: dict[str, int]) -> dict[str, int]:
    return dict(zip(mesh, map(int, np.unravel_index(device, tuple(mesh.values()))), strict=True))
