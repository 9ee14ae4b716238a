"""Which axes of the batch a gradient is joined over once, and how weights and their sums come and go between them."""

from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.layout import ArraySpec, Layout, place_abstract
from meshtrain.parallel.rows import own_axes, own_rows, own_specs, part_spec, reaching

KINDS = ("params", "grads", "activations")
MESH = dict(a=2, b=2, t=2)


@pytest.mark.parametrize(
    ("declared", "wanted"),
    [
        (dict(rules=dict(batch=("a", "b"))), ("a", "b")),
        (dict(rules=dict(batch=("a", "b")), optimizer=dict(embed=("a", "b"))), ("a", "b")),
        (dict(rules=dict(batch=("a", "b")), grads=dict(embed="b")), ("a",)),
        (dict(rules=dict(batch=("a", "b")), params=dict(embed="a")), ()),
        # Axes that cut experts, too, as long as a device's slice is a block of the row and alike in all classes.
        (dict(rules=dict(batch=("a", "b"), expert="b")), ("a", "b")),
        (dict(rules=dict(batch=("a", "b"), expert=("b", "a"))), ("a", "b")),
        (dict(rules=dict(batch="a", expert=("a", "t"))), ("a",)),
        (dict(rules=dict(batch="a", expert=("t", "a"))), ()),
        (dict(rules=dict(batch=("a", "b"), expert=("t", "b"))), ("a",)),
        (dict(rules=dict(batch=("a", "b"), expert="b"), grads=dict(expert=("b", "a"))), ()),
        (dict(rules=dict(batch=("a", "b"), expert="b"), params=dict(expert_embed="a")), ()),
        (dict(rules=dict(batch=("a", "b"), expert="b"), optimizer=dict(expert_embed="a")), ("a", "b")),
    ],
)
def test_axes_that_cut_the_batch_and_no_dense_weight(declared: dict[str, Any], wanted: tuple[str, ...]) -> None:
    place = place_abstract(Layout.parse(dict(mesh=MESH, **declared)), 8)
    assert own_axes(place, KINDS) == wanted
    inner = own_rows(place, wanted)
    assert not set(wanted) & set(inner.axes("batch"))
    assert inner.axes("expert", "use") == place.axes("expert", "use")
    assert reaching(place) is place  # outside of these axes there is nothing that an exchange could not reach


def test_experts_stay_where_they_are_and_all_else_comes_whole() -> None:
    place = place_abstract(Layout.parse(dict(mesh=MESH, rules=dict(batch=("a", "b"), expert=("b", "t")))), 8)
    float32 = np.dtype(np.float32)
    specs = {
        "up": ArraySpec((3, 8, 4, 6), float32, ("layers", "expert", "expert_embed", "expert_mlp")),
        "router": ArraySpec((3, 4, 8), float32, ("layers", "embed", "router")),
    }
    found = own_specs(place, ("a", "b"), specs)
    assert found == {"up": P(None, ("b",), None, None), "router": P(None, None, None)}
    assert part_spec(("a", "b"), found["up"]) == P("a", None, ("b",), None, None)  # nothing to join over b
    assert part_spec(("a", "b"), found["router"]) == P(("a", "b"), None, None, None)
