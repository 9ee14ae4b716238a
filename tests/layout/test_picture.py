"""Pictures: the numbers in them are those of the real shardings."""

import itertools
import re

import pytest

from meshtrain.layout import Layout, place
from meshtrain.layout.inventory import axes_of
from meshtrain.layout.picture import _holders, array_picture, mesh_picture
from tests.layout.arrays import array, placed


def test_the_mesh_grid() -> None:
    lines = mesh_picture(placed(mesh=dict(a=2, b=2, c=2)))
    rows = [["c=0", "c=1"], ["a=0", "b=0", "0", "1"], ["a=0", "b=1", "2", "3"]]
    rows += [["a=1", "b=0", "4", "5"], ["a=1", "b=1", "6", "7"]]
    assert [line.split() for line in lines] == rows


@pytest.mark.parametrize(
    "rules",
    [
        dict(mlp=("a", "c"), embed="b"),
        dict(mlp="c"),
        dict(layers="b", embed=("c", "a")),
        dict(embed=("c", "b", "a")),
        {},
    ],
)
def test_the_holders_of_a_part_are_the_devices_that_jax_says(rules: dict[str, object]) -> None:
    here = place(Layout.parse(dict(mesh=dict(a=2, b=2, c=2), rules=rules)))
    spec = array("layers embed mlp", 4, 8, 16)
    sharding = here.sharding("params", spec.dims, spec.shape)
    expected: dict[tuple[int, ...], list[int]] = {}
    local = sharding.shard_shape(spec.shape)
    order = {device: i for i, device in enumerate(here.mesh.devices.flat)}
    for device, index in sharding.devices_indices_map(spec.shape).items():
        part = tuple((s.start or 0) // n for s, n in zip(index, local, strict=True))
        expected.setdefault(part, []).append(order[device])
    axes = axes_of(here, "params", spec)
    for part in itertools.product(*(range(n // m) for n, m in zip(spec.shape, local, strict=True))):
        assert _holders(here, axes, dict(enumerate(part))) == sorted(expected[part])


def test_an_array_in_parts() -> None:
    here = placed(mesh=dict(data=2, tensor=4), rules=dict(batch="data", mlp="tensor"), params=dict(embed="data"))
    text = "\n".join(array_picture(here, "params", array("embed mlp", 64, 128)))
    assert "embed (over data) runs down, mlp (over tensor) runs across" in text
    assert re.search(r"0:32 +│ +0 +│ +1 +│ +2 +│ +3 +│", text)
    assert re.search(r"32:64 +│ +4 +│ +5 +│ +6 +│ +7 +│", text)


def test_large_meshes_are_shortened() -> None:
    here = placed(
        16384, mesh=dict(data=-1, tensor=8), rules=dict(batch="data", mlp="tensor"), params=dict(embed="data")
    )
    lines = array_picture(here, "params", array("layers embed mlp", 126, 16384, 53248), width=100)
    assert len(lines) < 25
    assert max(map(len, lines)) <= 100
    assert "16383" in lines[-2]
    assert any(".." in line for line in lines)


def test_one_number_is_on_all_devices() -> None:
    text = "\n".join(array_picture(placed(mesh=dict(data=8)), "optimizer", array("")))
    assert "0-7" in text
