"""Each family against transformers: logits, gradients of a step, and every tensor back as it was."""

import functools
import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.io.hf import Folder, open_folder
from meshtrain.io.hf.known import FAMILIES
from meshtrain.io.hf.safetensors import DTYPES, Tensor
from meshtrain.io.hf.writing import Target, write_folder
from meshtrain.layout import single_placement
from meshtrain.model import ModelConfig, hidden_states
from meshtrain.model.decoder import output_loss
from meshtrain.model.losses import router_sums
from meshtrain.model.router import Choice
from tests.io.hf.arrays import logical, read
from tests.io.hf.transformer import CASES, library, make, quietly, save
from tests.quick import QUICK

# float32 sums in another order, over 64 positions and a few layers, on logits of about 1: a few 1e-6.
LOGITS, GRADIENTS = 1e-4, 1e-3
EVERYDAY = ("llama3_biased", "gemma2", "gpt2", "deepseek_v3")  # between them nearly every line of the tables


@functools.cache
def step(config: ModelConfig, length: int) -> Any:
    """(params, batch) -> ((loss sum, logits), gradients), compiled once."""
    place = single_placement()

    def loss(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        states = hidden_states(params, config, batch, place)
        table = params["embedding" if config.tied else "output"]["table"]
        logits = states @ table.T
        if config.logit_softcap:
            logits = config.logit_softcap * jnp.tanh(logits / config.logit_softcap)
        return output_loss(params, config, states, batch, place).loss_sum, logits

    return jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK)


def batch_of(ids: np.ndarray) -> dict[str, jax.Array]:
    """Rows of one document each, every token but the last with its next one as label."""
    labels = np.concatenate([ids[:, 1:], np.full_like(ids[:, :1], -1)], axis=1)
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    fields = dict(tokens=ids, labels=labels, positions=positions, segments=np.ones_like(ids))
    return {name: jnp.asarray(values) for name, values in fields.items()}


@functools.cache
def compared(name: str) -> tuple[Folder, Any, np.ndarray, np.ndarray, Any]:
    """(folder, weights, our logits, transformers' logits, our gradients) of a case."""
    import torch

    model, path = make(name)
    folder = open_folder(path)
    params = read(folder)
    ids = np.random.default_rng(1).integers(0, folder.model.vocab, (2, CASES[name].length), dtype=np.int32)
    (_, logits), gradients = step(folder.model, ids.shape[1])(params, batch_of(ids))
    tokens = torch.tensor(ids, dtype=torch.long)
    out = quietly(lambda: model(tokens).logits)
    model.zero_grad()
    torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
    return folder, params, np.asarray(logits), out.detach().numpy(), gradients


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in EVERYDAY)) for name in CASES]
)
def test_logits_and_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    library()
    folder, _, ours, theirs, gradients = compared(name)
    assert np.abs(ours - theirs).max() <= LOGITS
    assert np.abs(theirs).max() > 0.1  # there is something to compare
    # Their gradients, saved in the place of their weights, are read by the very table that is tested.
    expected = logical(folder, read(open_folder(with_gradients(name, tmp_path))))
    largest = max(np.linalg.norm(values) for values in expected.values())
    for weight, found in logical(folder, gradients).items():
        if weight.endswith("router/bias"):
            continue  # no optimizer trains it, and it has no gradient
        wanted = expected[weight]
        # Without a rotation a key's bias changes nothing (softmax): its gradient is rounding, of the largest one.
        rounding = 1e-7 * largest
        assert np.linalg.norm(found - wanted) <= GRADIENTS * np.linalg.norm(wanted) + rounding, weight
        assert np.linalg.norm(wanted) > 10 * rounding or (name[:4] == "gpt2" and weight[-8:] == "key_bias"), weight


def with_gradients(name: str, to: Path) -> Path:
    """A folder of the case whose tensors are the gradients of the model's weights."""
    model, path = make(name)
    weights = {weight: weight.data for weight in model.parameters()}
    for weight in weights:
        weight.data = weight.grad
    save(CASES[name], model, to)
    for weight, numbers in weights.items():
        weight.data = numbers
    shutil.copyfile(path / "config.json", to / "config.json")
    return to


@pytest.mark.parametrize("name", CASES)
def test_what_is_imported_and_exported_is_the_same_bytes(name: str, tmp_path: Path) -> None:
    library()
    _, path = make(name)
    folder = open_folder(path)
    numbers = logical(folder, read(folder))
    again = export(folder, numbers, tmp_path / "again")
    assert tensors_of(again) == tensors_of(path)
    old, new = (json.loads((place / "config.json").read_text()) for place in (path, again))
    assert old == new
    assert open_folder(again).model == folder.model
    # Moved by one column, nothing is the same any more: the comparison can fail.
    moved = {weight: np.roll(values, 1, axis=-1) for weight, values in numbers.items()}
    other = tensors_of(export(folder, moved, tmp_path / "moved"))
    assert all(other[tensor] != content for tensor, content in tensors_of(path).items())


@pytest.mark.parametrize(
    ("name", "config", "num_moe_layers"),
    [
        ("mixtral", dict(num_local_experts=8, num_experts_per_tok=2, intermediate_size=16), 6),
        ("qwen3_moe", dict(num_experts=8, num_experts_per_tok=3, decoder_sparse_step=2, intermediate_size=16), 3),
    ],
)
def test_the_balance_loss_presses_as_that_of_transformers(
    name: str, config: dict[str, Any], num_moe_layers: int
) -> None:
    """Value and gradient, for layers that are loaded alike (theirs takes the mean load of all layers)."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    library()
    theirs = importlib.import_module(f"transformers.models.{name}.modeling_{name}").load_balancing_loss_func
    sizes = dict(num_hidden_layers=6, hidden_size=32, num_attention_heads=4, num_key_value_heads=4, vocab_size=61)
    model = FAMILIES[name].model(sizes | config | dict(router_aux_loss_coef=0.03), "config.json")
    moe = model.moe
    assert moe is not None
    assert model.num_moe_layers == num_moe_layers
    logits = np.random.default_rng(0).normal(size=(1, 40, 8)).astype(np.float32)
    logits[..., 0] += 1  # uneven loads

    def ours(logits: jax.Array) -> jax.Array:
        share = jax.nn.softmax(logits)
        choice = Choice(jax.lax.top_k(logits, moe.top_k)[1], share, share, logits)
        return router_sums(choice, jnp.ones((1, 40)), jnp.zeros(()), None, moe).loss / 40

    value, gradient = jax.value_and_grad(ours)(logits)
    tensors = [torch.tensor(logits[0], requires_grad=True) for _ in range(num_moe_layers)]
    expected = 0.03 * theirs(tuple(tensors), 8, moe.top_k)
    expected.backward()
    # Sums of 320 float32 numbers in another order.
    assert float(value) * num_moe_layers == pytest.approx(float(expected.detach()), rel=1e-5)
    assert np.abs(np.asarray(gradient)[0] - tensors[0].grad.numpy()).max() <= 1e-5 * np.abs(gradient).max()
    written = FAMILIES[name].config(model, None, "new")
    assert written["router_aux_loss_coef"] == 0.03
    assert FAMILIES[name].model(written, "new") == model


@pytest.mark.parametrize("name", ["llama", "llama3_biased", "llama_linear_tied", "gemma2", "gpt2"])
def test_transformers_loads_an_export_made_without_their_config(name: str, tmp_path: Path) -> None:
    """As after training from scratch: the config is written anew, in several shards; nothing is missing or made up."""
    transformers = library()
    folder, _, _, theirs, _ = compared(name)
    target = Target(folder.family, "F32", shard_bytes=30_000)
    write_folder(tmp_path / "new", folder.model, target, logical(folder, read(folder)).__getitem__, progress=False)
    assert len(list((tmp_path / "new").glob("*.safetensors"))) > 1
    model, info = quietly(
        lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert str(model.dtype) == "torch.float32"
    import torch

    ids = np.random.default_rng(1).integers(0, folder.model.vocab, theirs.shape[:2], dtype=np.int32)
    again = quietly(lambda: model.eval()(torch.tensor(ids, dtype=torch.long)).logits).detach().numpy()
    assert np.abs(again - theirs).max() <= 1e-6


def export(folder: Folder, numbers: dict[str, np.ndarray], to: Path) -> Path:
    """The folder written anew as its own record says."""
    record = folder.record
    target = Target(
        folder.family, record["dtype"], 20_000, folder.values, folder.path, record["bare"], record["other_dtypes"]
    )
    write_folder(to, folder.model, target, numbers.__getitem__, progress=False)
    return to


def tensors_of(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> (dtype, shape, bytes) of all tensors of a folder."""
    tensors: dict[str, Tensor] = open_folder(path).tensors
    return {name: (t.dtype, t.shape, t.open().astype(DTYPES[t.dtype]).tobytes()) for name, t in tensors.items()}
