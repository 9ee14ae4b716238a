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
    ],
)
def test_bad_budgets(mapping: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Budget.parse(mapping)


def test_an_axis_may_stand_alone() -> None:
    budget = Budget.parse(dict(collectives=[dict(kind="permute", axes="x", wire="1 GB")]))
    assert budget.collectives == {("permute", ("x",)): 1e9}
