"""Mesh arithmetic, and that devices fill a mesh by host with the slowest axis outermost."""

from types import SimpleNamespace

import jax
import pytest

from meshtrain.errors import InputError
from meshtrain.layout import MeshShape, abstract_mesh, build_mesh
from meshtrain.layout.mesh import order_devices


def test_minus_one_takes_what_is_left_and_order_is_kept() -> None:
    sizes = MeshShape.parse(dict(slow=2, middle=-1, fast=2)).resolve(8)
    assert list(sizes.items()) == [("slow", 2), ("middle", 2), ("fast", 2)]
    assert MeshShape.parse(dict(a=-1, b=8)).resolve(8) == dict(a=1, b=8)
    assert MeshShape.parse({}).resolve(1) == {}


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (dict(data=2, tensor=2), "data=2 x tensor=2 is 4 devices, but there are 8. mesh.data=4 would work."),
        (
            dict(data=3, tensor=3),
            "is 9 devices, but there are 8. mesh.data=8 with mesh.tensor=1 would work.",
        ),
        (dict(data=-1, tensor=3), "the other axes of data=-1 x tensor=3 take 3 devices, which does not divide the 8"),
        (dict(data=16), "data=16 is 16 devices, but there are 8. mesh.data=8 would work."),
        ({}, "no axes is 1 device, but there are 8."),
    ],
)
def test_a_mesh_that_does_not_fit_is_an_error_with_sizes_that_would(mesh: dict[str, int], expected: str) -> None:
    """Case L2."""
    with pytest.raises(InputError) as caught:
        MeshShape.parse(mesh).resolve(8)
    assert expected in str(caught.value)


def test_the_remedy_for_a_minus_one_that_does_not_divide_works() -> None:
    with pytest.raises(InputError, match=r"mesh\.tensor=2 would work"):
        MeshShape.parse(dict(data=-1, tensor=3)).resolve(8)
    assert MeshShape.parse(dict(data=-1, tensor=2)).resolve(8) == dict(data=4, tensor=2)


def test_the_last_axis_changes_fastest() -> None:
    mesh = build_mesh(dict(slow=2, fast=4))
    assert [device.id for device in mesh.devices[1]] == [4, 5, 6, 7]
    assert dict(abstract_mesh(dict(slow=2048, fast=8)).shape) == dict(slow=2048, fast=8)


def test_devices_are_ordered_by_slice_host_and_number() -> None:
    def device(slice_index: int, process_index: int, number: int) -> SimpleNamespace:
        return SimpleNamespace(slice_index=slice_index, process_index=process_index, id=number)

    shuffled = [device(1, 2, 0), device(0, 1, 3), device(0, 0, 9), device(0, 1, 2)]
    ordered = order_devices(shuffled)
    assert [(d.slice_index, d.process_index, d.id) for d in ordered] == [(0, 0, 9), (0, 1, 2), (0, 1, 3), (1, 2, 0)]


def test_a_mesh_of_fewer_devices_takes_the_first() -> None:
    assert [d.id for d in build_mesh(dict(only=2), jax.devices()[:2]).devices] == [0, 1]
