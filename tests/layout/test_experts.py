"""The section `experts`, the rows of the experts' dims, and what a layout can get wrong about them."""

from typing import Any

import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Layout, place_abstract
from meshtrain.layout.experts import Experts


def test_defaults() -> None:
    assert Layout.parse(dict(mesh=dict())).experts == Experts("dropless", None)
    assert Layout.parse(dict(mesh=dict(), experts=dict(dispatch="capacity", capacity_factor=2))).experts == Experts(
        "capacity", 2.0
    )


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (dict(dispatch="dropfree"), "experts.dispatch: 'dropfree' is not one of dropless, capacity. Did you mean"),
        (dict(factor=1.0), "experts.factor: there is no such key"),
        (dict(dispatch="capacity"), "experts.capacity_factor: expected a number above 0, not None; 1.25"),
        (dict(dispatch="capacity", capacity_factor=0), "experts.capacity_factor: expected a number above 0, not 0"),
        (
            dict(capacity_factor=1.5),
            "experts.capacity_factor: 1.5 is set, but experts.dispatch='dropless' drops",
        ),
        ("dropless", "experts: expected a dict"),
    ],
)
def test_what_is_wrong_is_named(section: Any, text: str) -> None:
    with pytest.raises(InputError) as error:
        Layout.parse(dict(mesh=dict(), experts=section))
    assert text in str(error.value)


def test_capacity_is_rounded_up_and_at_most_the_row() -> None:
    assert Experts("capacity", 1.25).capacity(length=16, top_k=2, num_experts=8) == 5
    assert Experts("capacity", 1.26).capacity(length=16, top_k=2, num_experts=8) == 6
    assert Experts("capacity", 100.0).capacity(length=16, top_k=2, num_experts=8) == 16
    assert Experts("capacity", 0.001).capacity(length=16, top_k=2, num_experts=8) == 1
    assert Experts().capacity(length=16, top_k=2, num_experts=8) is None


def test_rows_of_experts_are_those_of_the_mlp_unless_they_have_their_own() -> None:
    layout = Layout.parse(
        dict(mesh=dict(d=2, t=2, x=2), rules=dict(mlp="t"), params=dict(embed="d"), grads=dict(expert_embed=None))
    )
    assert layout.rules.axes("expert_mlp") == ("t",)
    assert layout.params.axes("expert_embed") == ("d",)
    assert layout.grads.axes("expert_embed") == layout.optimizer.axes("expert_embed") == ()
    assert layout.optimizer.axes("embed") == ("d",)


def test_experts_that_an_axis_does_not_divide_are_an_error_with_the_numbers() -> None:
    place = place_abstract(Layout.parse(dict(mesh=dict(d=2, x=4), rules=dict(expert="x"))), 8)
    with pytest.raises(InputError, match=r"rules.expert: x=4 would cut .* 'expert' \(size 6, .* 4 or 8 would work"):
        place.spec("params", ("expert", "expert_embed", "expert_mlp"), (6, 16, 8))


def test_an_axis_twice_in_the_experts_is_an_error_that_says_how_to_leave_them_out() -> None:
    layout = Layout.parse(dict(mesh=dict(d=2), rules=dict(batch="d", expert="d"), params=dict(embed="d")))
    with pytest.raises(InputError, match=r"rules.expert and params.embed: .* `expert_embed=None` .* weights alone"):
        place_abstract(layout, 2).spec("params", ("expert", "expert_embed", "expert_mlp"), (8, 16, 8))
