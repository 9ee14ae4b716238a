"""The check: every finding, by the fault that causes it; a sound layout has none."""

from dataclasses import replace
from typing import Any

import pytest

from meshtrain.layout.check import check
from meshtrain.layout.finding import Finding
from tests.layout.arrays import MESH, TENSOR, array, findings, inventory, placed


def only(found: list[Finding], code: str) -> Finding:
    assert [finding.code for finding in found] == [code], "\n".join(map(str, found))
    return found[0]


SOUND: list[dict[str, Any]] = [
    dict(mesh=MESH, rules=TENSOR),
    dict(mesh=MESH, rules=TENSOR, activations=dict(stream="tensor"), params=dict(embed="data")),
    dict(mesh=dict(data=8), rules=dict(batch="data"), optimizer=dict(embed="data"), accumulate=2),
    dict(mesh=dict(a=2, b=4), rules=dict(batch=("a", "b")), params=dict(embed="b")),
    dict(mesh=dict(data=8, unused=1), rules=dict(batch="data", mlp="unused")),
]


@pytest.mark.parametrize("declared", SOUND)
def test_a_sound_layout_has_no_finding(declared: dict[str, Any]) -> None:
    assert findings(**declared) == []


def test_all_problems_are_found_and_one_cause_is_said_once() -> None:
    found = findings(
        mesh=MESH, rules=TENSOR, params=dict(embed="data"), sizes=dict(mlp=66, embed=63, kv_heads=3), batch=5
    )
    assert {(f.severity, f.where) for f in found} == {
        ("error", "global_batch"), ("error", "rules.mlp"), ("error", "params.embed"), ("error", "rules.kv_heads"),
    }  # fmt: skip
    mlp = next(f for f in found if f.where == "rules.mlp")
    assert {"params/layers/mlp/up", "grads/layers/mlp/up", "optimizer/mu/layers/mlp/up"} <= set(mlp.arrays)
    assert "64 or 68" in mlp.remedy


@pytest.mark.parametrize("dim", ["batch", "length", "stream"])
def test_tokens_are_not_cut_over_the_stages_of_a_pipeline(dim: str) -> None:
    """A ring over the stages would meet keys of other layers; nothing else refuses it."""
    rules: dict[str, Any] = dict(batch=("data", "stage") if dim == "batch" else "data", layers="stage")
    declared: dict[str, Any] = dict(
        mesh=dict(data=4, stage=2), rules=rules, pipeline=dict(microbatches=2), attention="ring",
        activations=dict(stream="stage") if dim == "stream" else {},
    )  # fmt: skip
    if dim == "length":
        declared["rules"] = dict(rules, length="stage")
    found = [finding for finding in findings(**declared) if finding.code == "tokens-on-stages"]
    where = f"{'activations' if dim == 'stream' else 'rules'}.{dim}"
    assert [finding.where for finding in found] == [f"{where} and rules.layers"]
    assert found[0].remedy == f"Take 'stage' out of {where}."
    assert not [f for f in findings(**dict(declared, pipeline=None)) if f.code == "tokens-on-stages"]


def test_an_axis_twice_is_found_in_the_array_that_has_it() -> None:
    found = findings(mesh=MESH, rules=dict(batch="data", mlp="tensor", heads="tensor", kv_heads="tensor", embed="data"))
    twice = next(f for f in found if f.code == "axis-twice")
    assert twice.where == "rules.batch and rules.embed"
    assert twice.arrays == ("activations/residual",)


def test_a_rule_that_nothing_uses() -> None:
    found = only(findings(mesh=MESH, rules=dict(**TENSOR, position="tensor")), "unused-rule")
    assert found.where == "rules.position"
    assert "no array of this model has the dim 'position'" in found.message


def test_a_rule_for_layers_that_this_model_has_not_is_a_note_where_its_experts_have_a_row_of_their_own() -> None:
    """As in a layout for models with dense layers and without: the row of the experts is there because of the other."""
    experts = ("layers/moe/experts/up", array("layers expert expert_embed expert_mlp", 2, 8, 64, 128))
    arrays = inventory()
    params = (*(one for one in arrays.params if "mlp" not in one[0]), experts)
    arrays = replace(arrays, params=params, grads=params, optimizer=params)
    rules = dict(TENSOR, expert=("data", "tensor"))
    found = check(placed(mesh=MESH, rules=dict(rules, expert_mlp=None)), arrays, 16)
    assert (only(found, "unused-rule").severity, found[0].where) == ("note", "rules.mlp")
    assert "'expert_mlp', which would follow it, has a row of its own" in found[0].message
    kept = params[:-1]
    dense = replace(arrays, params=kept, grads=kept, optimizer=kept)
    found = check(placed(mesh=MESH, rules=dict(rules, expert_mlp=None)), dense, 16)
    assert next(one.severity for one in found if one.where == "rules.mlp") == "warning"


def test_a_rule_that_is_overridden_everywhere() -> None:
    found = only(findings(mesh=MESH, rules=dict(TENSOR, batch="tensor"), activations=dict(batch="data")), "unused-rule")
    assert found.where == "rules.batch"
    assert "other rows override it" in found.message


def test_a_rule_that_is_overridden_in_one_class_only_is_used() -> None:
    assert not findings(mesh=MESH, rules=TENSOR, params=dict(embed="data"), grads=dict(embed=None))


def test_an_axis_over_which_nothing_is_cut() -> None:
    found = only(findings(mesh=dict(data=2, spare=4), rules=dict(batch="data")), "idle-axis")
    assert found.severity == "warning"
    assert found.where == "mesh.spare"
    assert "4 devices all compute the same" in found.message
    assert 'rules.batch=("data", "spare")' in found.remedy


def test_zero_without_a_share_of_the_batch_repeats_the_work() -> None:
    found = only(findings(mesh=dict(data=8), params=dict(embed="data")), "idle-axis")
    assert "params and grads and optimizer are cut over it, but no activation is" in found.message
    assert 'rules.batch="data"' in found.remedy


def test_copies_may_be_declared() -> None:
    found = only(findings(mesh=dict(data=8), rules=dict(batch=None)), "idle-axis")
    assert found.severity == "note"


def test_large_weights_that_most_of_their_class_leaves_whole() -> None:
    rules = {dim: axes for dim, axes in TENSOR.items() if dim != "vocab"}
    sizes = dict(embed=256, heads=8, kv_heads=8, mlp=8192, vocab=4096)
    found = [f for f in findings(mesh=MESH, rules=rules, sizes=sizes) if f.code == "replicated"]
    assert {f.arrays[0] for f in found} >= {"params/embedding/table", "grads/embedding/table"}
    assert all('rules.vocab="tensor" would cut it' in f.remedy for f in found)
    table = next(f for f in found if f.arrays == ("params/embedding/table",))
    assert "3.15 MB per device more than needed" in table.message  # 4096 x 256 x 4 bytes x 3/4


def test_experts_on_the_data_axis_make_no_other_weight_an_accident() -> None:
    """Most bytes are the experts', which the axis cuts; all else is as whole over it as without them."""
    declared = dict(mesh=dict(data=8), rules=dict(batch="data", expert="data"))
    sizes = dict(embed=256, mlp=8192, vocab=4096)
    arrays = inventory(**sizes)
    experts = ("layers/moe/experts/up", array("layers expert expert_embed expert_mlp", 2, 64, 256, 8192))
    arrays = replace(arrays, params=(*arrays.params, experts), grads=(*arrays.grads, experts))
    assert not check(placed(8, **declared), arrays, 16)
    # where the axis does cut most of them, the exception is found as before
    declared = dict(declared, params=dict(mlp="data", expert_mlp=None))
    found = check(placed(8, **declared), arrays, 16)
    assert "params/embedding/table" in {path for finding in found for path in finding.arrays}


def test_fewer_kv_heads_than_devices_are_noted_and_counted() -> None:
    found = only(findings(mesh=MESH, rules=TENSOR, sizes=dict(kv_heads=2)), "heads-replicated")
    assert found.severity == "note"
    assert "2 heads of keys and values on 4 devices" in found.message
    # key: 2 x 64 x 2 x 8 x 4 bytes in two parts; params, grads, master, two moments; one of two copies too many
    assert "20.5 kB of state" in found.message


def test_a_padded_vocabulary_is_noted() -> None:
    found = only(findings(mesh=MESH, rules=TENSOR, sizes=dict(vocab=257)), "vocab-padded")
    assert found.severity == "note"
    assert found.where == "rules.vocab"
    assert "257 is padded to 260" in found.message
    assert "3 rows of zeros" in found.message


@pytest.mark.parametrize(
    ("mesh", "fast", "expected"),
    [
        (dict(data=2, tensor=4), 4, None),
        (dict(data=2, tensor=4), 2, "mesh.tensor=2 would stay inside"),
        (dict(tensor=4, data=2), 4, "Write 'tensor' last in `mesh`"),
        (dict(tensor=4, data=2), 8, None),
    ],
)
def test_tensor_traffic_over_slow_links(mesh: dict[str, int], fast: int, expected: str | None) -> None:
    found = findings(mesh=mesh, rules=TENSOR, fast_devices=fast)
    if expected is None:
        assert found == []
    else:
        assert expected in only(found, "slow-links").remedy
