"""The whole model with its rows cut along their length: loss, every gradient and the update are those of one device.

Rows are packed, padded, and have a mask that counts only the last quarter of some (case N2), so that a mean of shards'
means would show.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.io import loader
from meshtrain.layout import Placement
from meshtrain.model import hidden_states, initialize
from meshtrain.step.train import Batch
from tests.parallel.references import documents
from tests.run.proofs import LENGTH, MODELS, check_equal, place_on, proof_of, verdict_on

INPUTS = import_module("meshtrain.model.inputs")

CONTEXT = dict(batch="data", length="context")
ALL = dict(CONTEXT, heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")
THREE = dict(mesh=dict(data=2, context=2, tensor=2), rules=ALL, activations=dict(stream=("context", "tensor")))


def ring(order: str = "zigzag", data: int = 2, context: int = 4, **more: Any) -> dict[str, Any]:
    return dict(
        mesh=dict(data=data, context=context), rules=CONTEXT, activations=dict(stream="context"), attention="ring",
        order=order, **more,
    )  # fmt: skip


def three(attention: str = "ring", **more: Any) -> dict[str, Any]:
    return dict(THREE, attention=attention, order="zigzag", **more)


def test_one_token_to_a_chunk() -> None:
    check_equal(proof_of("llama"), ring(data=1, context=8))


def test_dropout_softcap_and_one_key_head() -> None:
    """Case N4 over the context: a token's mask is that of its place in the row, not of its column."""
    check_equal(proof_of("gemma"), ring())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "declared"),
    [
        pytest.param("qwen", three(), id="windows in every other layer, tensor"),
        pytest.param("qwen", ring("contiguous"), id="windows, contiguous"),
        pytest.param("qwen", dict(ring(), attention="ulysses"), id="windows, ulysses"),
        pytest.param("gpt", dict(ring(), attention="gather"), id="learned positions, gather"),
        pytest.param("gemma", three("gather"), id="one key head on a tensor axis, gather"),
        pytest.param("llama", three(grads=dict(embed="data"), accumulate=2), id="zero2, accumulation"),
        pytest.param("llama", three(optimizer=dict(embed=("data", "context"))), id="zero1 over data and context"),
        pytest.param("llama", three(params=dict(embed=("data", "context")), remat="names"), id="zero3, names"),
        pytest.param("llama", three(params=dict(embed="data"), remat="dots", accumulate=4), id="zero3, dots"),
        pytest.param("llama", ring(remat="full"), id="full"),
        pytest.param("llama", dict(ring(), activations={}), id="a stream that is not cut"),
        pytest.param(
            "llama",
            dict(
                mesh=dict(a=2, b=2, c=2), rules=dict(length=("b", "a"), heads="c", kv_heads="c", mlp="c"),
                activations=dict(stream=("b", "a", "c")), attention="usp", order="zigzag",
            ),
            id="usp, tensor, axes in another order",
        ),
        pytest.param(
            "llama",
            dict(
                mesh=dict(context=2, tensor=4), rules=dict(ALL, batch=None),
                activations=dict(stream=("context", "tensor")), attention="ring", order="zigzag",
            ),
            id="2 key heads on tensor 4",
        ),
    ],
)  # fmt: skip
def test_combinations(model: str, declared: dict[str, Any]) -> None:
    check_equal(proof_of(model), declared)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "keep"), [("ring", "input"), ("gather", "input"), ("ring", "residuals"), ("ulysses", "residuals")]
)
def test_in_the_stages_of_a_pipeline(attention: str, keep: str) -> None:
    """Stages do different work in a tick, but none takes another way around a permute."""
    declared = dict(
        mesh=dict(stage=2, context=2, tensor=2), rules=dict(ALL, batch=None, layers="stage"), attention=attention,
        activations=dict(stream=("context", "tensor")), order="contiguous" if attention == "ulysses" else "zigzag",
        pipeline=dict(schedule="1f1b", microbatches=4, keep=keep),
    )  # fmt: skip
    check_equal(proof_of("llama"), declared)


@pytest.mark.slow
@pytest.mark.parametrize(("data", "context"), [(8, 1), (4, 2), (2, 4)])
def test_the_same_batch_on_more_context(data: int, context: int) -> None:
    """Case N2, as a user would meet it: one global batch, three meshes."""
    check_equal(proof_of("llama"), ring(data=data, context=context))


PLACES: list[dict[str, Any]] = [
    dict(mesh=dict(data=1)), ring(data=1), ring("contiguous", data=1), dict(ring(data=1), attention="gather"),
]  # fmt: skip


@pytest.mark.parametrize("declared", PLACES[:2], ids=["one device", "ring, zigzag"])
def test_documents_do_not_see_each_other(declared: dict[str, Any]) -> None:
    """Case N3: another token in the first document changes no bit of the second, nor of the third in the next row."""
    place = place_on(4 if "attention" in declared else 1, declared)
    model = MODELS["llama"]
    positions, segments = documents([[7, 9], [16]], LENGTH)
    params = initialize(model, jax.random.key(0))
    order = loader_order(place)

    @jax.jit
    def states(batch: Batch) -> jax.Array:
        return hidden_states(params, model, batch, place)

    found = []
    for token in (3, 4):
        tokens = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
        tokens[0, 2] = token
        batch = dict(tokens=tokens, positions=positions, segments=segments)
        found.append(np.asarray(states({k: jnp.asarray(v[:, order]) for k, v in batch.items()}))[:, np.argsort(order)])
    np.testing.assert_array_equal(found[0][0, 7:], found[1][0, 7:])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert not np.array_equal(found[0][0, :7], found[1][0, :7])


def loader_order(place: Placement) -> np.ndarray:
    from meshtrain.layout.order import row_order

    order = row_order(place, LENGTH)
    return np.arange(LENGTH) if order is None else order


# Mistakes in the host's part: the proof must see each.


@pytest.fixture
def _reference() -> Iterator[None]:
    for model in ("llama", "gemma"):
        proof_of(model)
    yield
    jax.clear_caches()


def differs(model: str, declared: dict[str, Any]) -> None:
    jax.clear_caches()
    assert verdict_on(proof_of(model), declared).status == "DIFFERS"


@pytest.mark.slow
@pytest.mark.usefixtures("_reference")
@pytest.mark.parametrize("field", ["labels", "positions", "segments", "tokens"])
def test_a_field_left_in_the_order_of_the_row(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = loader.Batches._read

    def forgets(self: loader.Batches, step: int) -> Any:
        rows, number = read(self, step)
        if self._order is not None:
            rows[field] = rows[field][:, np.argsort(self._order)]
        return rows, number

    monkeypatch.setattr(loader.Batches, "_read", forgets)
    differs("llama", ring())


@pytest.mark.slow
@pytest.mark.usefixtures("_reference")
def test_dropout_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(INPUTS, "row_tokens", lambda place, T: jnp.arange(T))
    differs("gemma", ring())


@pytest.mark.slow
@pytest.mark.usefixtures("_reference")
def test_rotary_phases_by_the_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case N8: positions that count from each shard's own first token."""
    tables = INPUTS.rotary_tables
    monkeypatch.setattr(INPUTS, "rotary_tables", lambda positions, config: tables(positions % (LENGTH // 4), config))
    differs("llama", ring("contiguous"))
