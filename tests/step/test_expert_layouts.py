"""Models with experts under every kind of layout: loss, every gradient and the update are those of one device.

One device computes what a dense float64 loop over experts does (tests/model/test_decoder.py). Here the loads of all
experts agree exactly, too, and with a capacity so do the tokens that are dropped. Cases M1, M2 and M3 in part; more of
them in test_routing.py. A chosen part of the grid that `scripts/prove_experts.py` proves whole.
"""

import math
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.model import losses
from meshtrain.parallel.experts.dropless import Dropless
from tests.run.proofs import check_equal, proof_of, verdict_on

# Modules that share their name with what their package exports.
moe, run = import_module("meshtrain.model.moe"), import_module("meshtrain.parallel.experts.run")

ROOM = dict(dispatch="capacity", capacity_factor=4.0)  # 8 experts, top 2: nothing is ever dropped
TENSOR = dict(heads="t", kv_heads="t", mlp="t", vocab="t")
ALONE = dict(mesh=dict(x=8), rules=dict(batch="x", expert="x"))
FOLDED = dict(
    mesh=dict(d=4, t=2), rules=dict(TENSOR, batch="d", expert=("d", "t"), expert_mlp=None), activations=dict(stream="t")
)
CUT = dict(mesh=dict(d=4, t=2), rules=dict(TENSOR, batch="d", expert="d"), activations=dict(stream="t"))
OWN = dict(mesh=dict(d=2, x=4), rules=dict(batch=("d", "x"), expert="x"))
STAGES = dict(
    mesh=dict(s=2, d=2, x=2), rules=dict(batch=("d", "x"), expert="x", layers="s"),
    pipeline=dict(schedule="1f1b", microbatches=2),
)  # fmt: skip


def own(**more: Any) -> dict[str, Any]:
    return {**OWN, **more}


LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": ALONE,
    "on data and tensor": FOLDED,
    "on data and tensor, stream whole": {**FOLDED, "activations": {}},
    "a cut hidden layer": CUT,
    "two axes": dict(mesh=dict(a=2, b=4), rules=dict(batch=("a", "b"), expert=("a", "b"))),
    "two axes, declared the other way": dict(mesh=dict(a=2, b=4), rules=dict(batch=("a", "b"), expert=("b", "a"))),
    "zero1": own(optimizer=dict(embed=("d", "x"), expert_embed="d")),
    "zero2, accumulate": own(mesh=dict(d=2, x=2), grads=dict(embed="x", expert_embed="d"), accumulate=2),
    "zero3, remat": own(params=dict(embed=("d", "x"), expert_embed="d"), remat="full"),
    "accumulate": dict(mesh=dict(x=2), rules=dict(batch="x", expert="x"), accumulate=4),
    "context, zigzag": dict(
        mesh=dict(d=2, c=4), rules=dict(batch="d", length="c", expert=("d", "c")), activations=dict(stream="c"),
        attention="ring", order="zigzag",
    ),
    "context, experts over the batch": dict(
        mesh=dict(d=2, c=4), rules=dict(batch="d", length="c", expert="d"), activations=dict(stream="c"),
        attention="ulysses",
    ),
    "own, accumulate, zero1": own(
        mesh=dict(d=2, x=2), optimizer=dict(embed=("d", "x"), expert_embed="d"), accumulate=2,
    ),
    "folded, accumulate": {**FOLDED, "mesh": dict(d=2, t=2), "accumulate": 2},
    "accumulate over data": dict(mesh=dict(d=4), rules=dict(batch="d"), accumulate=2),
    "1f1b": STAGES,
    "1f1b, pieces of one layer and of two": {
        **STAGES, "mesh": dict(s=2, d=1, x=2), "pipeline": dict(schedule="1f1b", microbatches=2, layers=(2, 1)),
    },
    "1f1b, residuals, pieces of one layer and of two": {
        **STAGES, "mesh": dict(s=2, d=1, x=2), "remat": "dots",
        "pipeline": dict(schedule="1f1b", microbatches=2, layers=(2, 1), keep="residuals"),
    },
    "gathered in every pass, residuals": dict(
        mesh=dict(s=2, x=2), rules=dict(batch="x", expert="x", layers="s"), params=dict(embed="x", expert_embed=None),
        pipeline=dict(schedule="1f1b", microbatches=2, gather="pass", keep="residuals"), remat="full",
    ),
    "gathered in every pass": dict(
        mesh=dict(s=2, x=2), rules=dict(batch="x", expert="x", layers="s"), params=dict(embed="x", expert_embed=None),
        pipeline=dict(schedule="1f1b", microbatches=2, gather="pass"),
    ),
    "zb, zero1": {
        **STAGES, "pipeline": dict(schedule="zb_h1", microbatches=2),
        "optimizer": dict(embed=("d", "x"), expert_embed="d"),
    },
    "1f1b, on data and tensor": dict(
        mesh=dict(s=2, d=2, t=2),
        rules=dict(TENSOR, batch="d", expert=("d", "t"), expert_mlp=None, layers="s"), activations=dict(stream="t"),
        pipeline=dict(schedule="1f1b", microbatches=2), params=dict(embed="d", expert_embed=None),
    ),
}  # fmt: skip


def devices(declared: dict[str, Any]) -> int:
    return math.prod(declared["mesh"].values())


def slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    ["on data and tensor", *slow(
        "alone", "folded, accumulate", "a cut hidden layer", "two axes, declared the other way", "zero2, accumulate",
        "zero3, remat", "context, zigzag", "zb, zero1", "1f1b, on data and tensor",
    )],
)  # fmt: skip
def test_dropless(name: str) -> None:
    """Cases M1 (balance loss over accumulation, data, expert, stages) and M2."""
    check_equal(proof_of("moe"), LAYOUTS[name], devices(LAYOUTS[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["on data and tensor, stream whole", "a cut hidden layer", "zero1", "context, experts over the batch", "1f1b"],
)
def test_capacity_with_room_for_all(name: str) -> None:
    check_equal(proof_of("moe"), dict(LAYOUTS[name], experts=ROOM), devices(LAYOUTS[name]))


@pytest.mark.parametrize("name", ["two axes", *slow("on data and tensor", "accumulate", "context, zigzag")])
def test_the_same_tokens_are_dropped(name: str) -> None:
    """Case M3, capacity 1.0 and less: an expert's queue is the row's, whoever holds which part of it."""
    proof = proof_of("moe", experts=(("dispatch", "capacity"), ("capacity_factor", 0.8)))
    assert proof.reference.routers[0]["drop_share"].min() > 0.1
    experts = dict(dispatch="capacity", capacity_factor=0.8)
    check_equal(proof, dict(LAYOUTS[name], experts=experts), devices(LAYOUTS[name]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("grouped", "on data and tensor"),
        ("interleaved", "zero3, remat"),
        ("patterned", "1f1b, pieces of one layer and of two"),
        ("interleaved", "gathered in every pass"),
        ("all experts", "own, accumulate, zero1"),
        ("one expert", "accumulate over data"),
    ],
)
def test_groups_bias_and_dense_layers(model: str, name: str) -> None:
    """The router's bias moves alike; dense layers before and between, in stages too; dropout; no choice at all."""
    check_equal(proof_of(model), LAYOUTS[name], devices(LAYOUTS[name]))


@pytest.mark.slow
def test_muon_makes_each_experts_own_matrix_orthogonal() -> None:
    """Whoever holds it: experts cut over one axis, their moments over another, dense moments over both."""
    check_equal(proof_of("moe", optimizer="muon"), own(
        mesh=dict(d=2, x=2), optimizer=dict(embed=("d", "x"), expert_embed="d"),
    ), 4)  # fmt: skip


def ragged_all_to_all(
    operand: jax.Array, output: jax.Array, input_offsets: jax.Array, send_sizes: jax.Array, output_offsets: jax.Array,
    recv_sizes: jax.Array, *, axis_name: str,
) -> jax.Array:  # fmt: skip
    """What jax.lax's documentation says that this does, for a CPU, which has none: everybody gets everything."""
    sent = [jax.lax.all_gather(x, axis_name) for x in (operand, input_offsets, send_sizes, output_offsets)]
    me, row = jax.lax.axis_index(axis_name), jnp.arange(output.shape[0])
    received = 0
    for rows, start, size, at in zip(*sent, strict=True):
        place = row - at[me]
        mine = (place >= 0) & (place < size[me])
        output = jnp.where(mine[:, None], rows[jnp.clip(place + start[me], 0, len(rows) - 1)], output)
        received += size[me]
    return jnp.where(received == recv_sizes.sum(), output, jnp.nan)


@pytest.mark.slow
def test_the_exchange_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path with ragged all-to-alls and ragged products, every offset of it, with the primitive played on CPUs."""
    proof_of("moe")
    monkeypatch.setattr(run, "GPU", ("cpu",))
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    jax.clear_caches()
    check_equal(proof_of("moe"), LAYOUTS["two axes"])


def differs(declared: dict[str, Any], model: str = "moe") -> None:
    proof = proof_of(model)
    jax.clear_caches()
    verdict = verdict_on(proof, declared, devices(declared))
    assert verdict.status == "DIFFERS", f"the mistake was not noticed, the verdict is {verdict.status}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", ["an expert is swapped", "what comes back is dropped", "a local statistic", "a gradient is not summed"]
)
def test_mistakes_are_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls of everything above."""
    proof_of("moe")
    declared: dict[str, Any] = dict(mesh=dict(x=2), rules=dict(batch="x", expert="x"))
    if mistake == "an expert is swapped":
        times = Dropless.times
        monkeypatch.setattr(Dropless, "times", lambda s, r, x, w: times(s, r, x, tuple(v[::-1] for v in w)))
    elif mistake == "what comes back is dropped":
        exchange = Dropless._exchange
        monkeypatch.setattr(
            Dropless, "_exchange",
            lambda s, x, num, hop, sizes, axis: exchange(s, x, num, hop, sizes, axis) * (num != s.num_rows(hop - 1)),
        )  # fmt: skip
    elif mistake == "a local statistic":
        declared = LAYOUTS["accumulate"]
        sums = losses.router_sums
        monkeypatch.setattr(moe, "router_sums", lambda c, n, d, load, m: sums(c, n, d, None, m))
    else:
        monkeypatch.setattr(run, "_sum_parts", lambda y, axes, scatters, place: y)
        declared = dict(mesh=dict(x=2), rules=dict(batch=None, expert="x"))
    differs(declared)
