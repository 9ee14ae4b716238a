"""Tables: bytes per device against the reference values for ZeRO's stages, and the row of one array."""

import math

import pytest

from meshtrain.layout.inventory import Inventory
from meshtrain.layout.table import by_stage, gathered, rows, state_bytes
from tests.layout.arrays import MESH, TENSOR, array, inventory, placed


def test_a_row_says_how_an_array_is_cut() -> None:
    here = placed(mesh=MESH, rules=TENSOR, params=dict(embed="data"))
    row = next(row for row in rows(here, "params", inventory().params) if row.path == "layers/mlp/up")
    assert row.cut == "[layers, embed_data, mlp_tensor]"
    assert row.shape == (2, 64, 128)
    assert row.local == (2, 32, 32)
    assert row.num_bytes == 2 * 32 * 32 * 4


def test_two_axes_on_one_dim() -> None:
    here = placed(mesh=dict(a=2, b=4), rules=dict(batch=("a", "b")))
    (row,) = rows(here, "activations", inventory().batch)
    assert row.cut == "[batch_a_b, length]"


def test_master_and_moments_that_are_cut_alike_are_one_row() -> None:
    arrays = inventory()
    here = placed(mesh=MESH, rules=TENSOR)
    table = gathered(rows(here, "optimizer", arrays.optimizer), [path for path, _ in arrays.params])
    assert [row.path for row in table] == [path for path, _ in arrays.params]
    assert {row.count for row in table} == {3}
    assert sum(row.num_bytes for row in table) == state_bytes(here, arrays)["optimizer"]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("num_parameters", "num_devices"), [(405 * 10**9, 64), (405 * 10**9, 512), (75 * 10**8, 64)])
def test_state_memory_is_the_formula_of_zero(stage: int, num_parameters: int, num_devices: int) -> None:
    """DDP 16 P; ZeRO-1 4 P + 12 P/N; ZeRO-2 2 P + 14 P/N; ZeRO-3 16 P/N (arXiv 1910.02054), bf16 with Adam."""
    embed = 1024
    shape = (embed, math.ceil(num_parameters / embed))
    half, full = (("w", array("embed mlp", *shape, dtype=dtype)) for dtype in ("bfloat16", "float32"))
    arrays = Inventory(params=(half,), grads=(half,), optimizer=(full,) * 3, activations=(), batch=())
    kind = {1: "optimizer", 2: "grads", 3: "params"}
    section: dict[str, dict[str, str]] = {kind[stage]: dict(embed="data")} if stage else {}
    here = placed(num_devices, mesh=dict(data=-1), rules=dict(batch="data"), **section)
    bytes_each = {0: 16, 1: 4 + 12 / num_devices, 2: 2 + 14 / num_devices, 3: 16 / num_devices}
    assert sum(state_bytes(here, arrays).values()) == pytest.approx(bytes_each[stage] * num_parameters, rel=1e-6)
    stages = by_stage(here, arrays)
    assert stages is not None
    assert stages[stage] == sum(state_bytes(here, arrays).values())
    assert stages == {s: pytest.approx(b * num_parameters, rel=1e-6) for s, b in bytes_each.items()}


def test_no_stages_without_an_axis_for_them() -> None:
    assert by_stage(placed(mesh=dict(data=8)), inventory()) is None
    odd = inventory(embed=60)
    assert by_stage(placed(mesh=dict(data=8), rules=dict(batch="data")), odd) is None
