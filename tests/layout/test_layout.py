"""Layout files: read whole, and all that is wrong is said at once, with the nearest valid name."""

import pytest

from meshtrain.errors import InputError
from meshtrain.layout import Finding, Layout


def message(**declared: object) -> str:
    with pytest.raises(InputError) as caught:
        Layout.parse(declared, name="mine")
    return str(caught.value)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (dict(mesh=dict(data=1), ruels=dict(batch="data")), "no key 'ruels'. Did you mean 'rules'?"),
        (
            dict(mesh=dict(data=1), rules=dict(bacth="data")),
            "rules.bacth: there is no dim 'bacth'. Did you mean 'batch'?",
        ),
        (
            dict(mesh=dict(data=1), rules=dict(batch="dta")),
            "rules.batch: the mesh has no axis 'dta'. Did you mean",
        ),
        (dict(mesh=dict(data=1), params=dict(embed="dta")), "params.embed: the mesh has no axis 'dta'."),
        (dict(mesh=dict(data=1), rules=dict(batch=3)), "rules.batch: 3 is not an axis name"),
        (dict(mesh=dict(data=1), rules=dict(batch=("data", "data"))), "rules.batch: the axis 'data' is named twice"),
        (dict(mesh=dict(data=1), params=dict(batch="data")), "params.batch: no weight has the dim 'batch'"),
        (dict(mesh=dict(data=1), grads="data"), "grads: expected a dict, such as grads=dict(...), not 'data'"),
        (dict(mesh=dict(data=1), accumulate=0), "accumulate: expected a whole number of at least 1, not 0"),
        (dict(mesh=dict(data=1), accumulate=True), "accumulate: expected a whole number"),
        (
            dict(mesh=dict(data=1), remat="ful"),
            "remat: 'ful' is not one of none, dots, names, full. Did",
        ),
        (dict(mesh=dict(data=1), attention=3), "attention: 3 is not one of local, gather"),
        (dict(rules={}), "layout mine: `mesh` is missing; `mesh=dict(data=-1)` is one axis over all devices."),
        (dict(mesh=dict(data=0)), "mesh.data: the size must be a positive integer or -1 (what is left), not 0"),
        (dict(mesh={"Ω": 8}), "mesh.Ω: the name 'Ω' cannot be used"),
        (dict(mesh={"a b": 8}), "mesh.a b: the name 'a b' cannot be used"),
        (dict(mesh=dict(data=-1, tensor=-1)), "mesh.data and mesh.tensor: both are -1"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(declared: dict[str, object], expected: str) -> None:
    assert expected in message(**declared)


def test_everything_is_said_at_once() -> None:
    text = message(
        mesh=dict(data=-1, tensor=2.5), rules=dict(bacth="data", mlp="tensr"), remat="ful", acumulate=2, accumulate=-1
    )
    assert len(text.splitlines()) == 6
    for part in ("mesh.tensor", "rules.bacth", "rules.mlp", "remat", "'acumulate'", "accumulate: expected"):
        assert part in text


def test_with_a_list_reading_goes_on_without_what_is_wrong() -> None:
    findings: list[Finding] = []
    declared = dict(mesh=dict(data=-1), rules=dict(batch="data", mlp="tensr"), remat="ful", accumulate=2)
    layout = Layout.parse(declared, findings=findings)
    assert {finding.where for finding in findings} == {"rules.mlp", "remat"}
    assert layout.rules.axes("batch") == ("data",)
    assert layout.rules.axes("mlp") == ()
    assert layout.remat == "none"
    assert layout.accumulate == 2
