"""A budget file that says what cannot be is refused with the form that would work."""

import pytest

from meshtrain.audit.budget import Budget
from meshtrain.errors import InputError


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        (dict(memori="1 GB"), "Did you mean 'memory'"),
        (dict(memory=70), "budget.memory"),
        (dict(collectives=[dict(kind="gather", axes=["x"], wire="1 GB")]), "all_gather"),
        (dict(collectives=[dict(kind="all_gather", axes=["x"])]), r"collectives\[0\]"),
        (dict(collectives=dict(all_gather="1 GB")), "a list of"),
        (dict(collectives=["all_gather"]), r"collectives\[0\]: expected dict"),
        (dict(collectives=[dict(kind="all_gather", axes=3, wire="1 GB")]), r"collectives\[0\]: expected dict"),
        (dict(collectives=[dict(kind="all_gather", axes=[], wire="1 GB")]), r"collectives\[0\]: expected dict"),
        (dict(collectives=[dict(kind="all_gather", axes="x", wire=None)]), r"collectives\[0\].wire: a line without"),
        (dict(collectives=[dict(kind="all_gather", axes="x", wire="1 Gb")]), r"collectives\[0\].wire"),
        (dict(collectives=[dict(kind="permute", axes="x", wire="1 GB")] * 2), r"\[1\]: permute over x has a line"),
        (dict(), "no limit in it"),
    ],
)
def test_bad_budgets(mapping: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Budget.parse(mapping)


def test_an_axis_may_stand_alone() -> None:
    budget = Budget.parse(dict(collectives=[dict(kind="permute", axes="x", wire="1 GB")]))
    assert budget.collectives == {("permute", ("x",)): 1e9}


def test_axes_are_those_of_the_mesh_in_its_order() -> None:
    budget = Budget.parse(dict(collectives=[dict(kind="permute", axes=["b", "a"], wire="1 GB")]))
    assert budget.on_mesh(["a", "b"]).collectives == {("permute", ("a", "b")): 1e9}
    with pytest.raises(InputError, match=r"no axis 'b'\. Its axes are: a"):
        budget.on_mesh(["a"])
