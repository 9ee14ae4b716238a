"""Rules: which axes cut which dim, class by class, and what is refused."""

import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.errors import InputError
from meshtrain.layout import Layout
from meshtrain.layout.finding import Finding
from meshtrain.layout.rules import Rules


def rules(**rows: object) -> Rules:
    findings: list[Finding] = []
    found = Rules.parse(rows, "rules", ("data", "tensor"), findings)
    assert not findings
    return found


def test_a_row_is_an_axis_a_tuple_or_none() -> None:
    made = rules(batch="data", mlp=("data", "tensor"), embed=None)
    assert made.axes("batch") == ("data",)
    assert made.axes("mlp") == ("data", "tensor")
    assert made.axes("embed") == made.axes("vocab") == ()
    assert made.spec(("batch", "embed", "vocab")) == P("data", None, None)
    assert made.spec(("embed", "mlp")) == P(None, ("data", "tensor"))


def test_one_axis_twice_in_an_array_is_an_error_that_names_both_rows() -> None:
    with pytest.raises(InputError, match=r"rules\.embed and rules\.mlp: the array \[embed, mlp\].*'tensor' twice"):
        rules(embed="tensor", mlp="tensor").spec(("embed", "mlp"))
    rules(embed="tensor", mlp="tensor").spec(("batch", "mlp"))  # in two arrays it may


def test_the_same_dim_twice_in_an_array_counts_too() -> None:
    with pytest.raises(InputError, match="twice"):
        rules(embed="tensor").spec(("embed", "embed"))


def test_classes_inherit_params_grads_optimizer_and_activations_stand_apart() -> None:
    layout = Layout.parse(
        dict(
            mesh=dict(data=2, tensor=2),
            rules=dict(batch="data", mlp="tensor"),
            activations=dict(stream="tensor"),
            params=dict(embed="data"),
            grads=dict(mlp=None),
            optimizer=dict(embed=("data", "tensor")),
        )
    )
    assert layout.params.axes("embed") == layout.grads.axes("embed") == ("data",)
    assert layout.optimizer.axes("embed") == ("data", "tensor")
    assert layout.params.axes("mlp") == ("tensor",)
    assert layout.grads.axes("mlp") == layout.optimizer.axes("mlp") == ()
    assert layout.activations.axes("embed") == ()
    assert layout.activations.axes("stream") == ("tensor",)
    assert layout.activations.axes("mlp") == ("tensor",)
    assert layout.optimizer.source["embed"] == "optimizer.embed"
    assert layout.params.source["mlp"] == "rules.mlp"
