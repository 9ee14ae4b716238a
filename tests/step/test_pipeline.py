"""The training step under a pipeline against one device: loss by microbatch, every gradient, the updated state."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from meshtrain.audit.hlo import parse_module
from meshtrain.errors import InputError
from meshtrain.io.checkpoint import CheckpointConfig, Checkpoints, find, restore
from meshtrain.layout import Layout, Placement, place, single_placement
from meshtrain.layout.padding import physical_specs, strip_tree
from meshtrain.model import ModelConfig, loss_sums
from meshtrain.model.stages import pipeline_stages
from meshtrain.parallel import LossSums
from meshtrain.parallel.pipeline.slots import at_most_once
from meshtrain.step import OptimizerConfig, StepConfig, initial_state, make_eval_step, make_train_step, state_specs
from meshtrain.step.microbatches import microbatches
from meshtrain.step.pipeline import PipelineStep
from meshtrain.step.state import abstract_state, make_device_order
from tests.quick import QUICK

ROOT = Path(__file__).parents[2]

MODEL: dict[str, Any] = dict(
    num_layers=8, embed=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp=24, vocab=61, max_length=16
)
LENGTH, BATCH = 12, 16

TENSOR = dict(heads="t", kv_heads="t", mlp="t", vocab="t")

# float32: the sums over a few hundred tokens run in another order; 8 layers pass it on. Of an array's largest value.
TOLERANCE = 3e-5


def config(**model: Any) -> StepConfig:
    return StepConfig(ModelConfig(**(MODEL | model)), OptimizerConfig(learning_rate=1e-2), z_loss=1e-3, seed=3)


def batch() -> dict[str, jax.Array]:
    """Two packed documents and padding in each row, each row cut elsewhere; labels uncounted unevenly (case P1)."""
    random = np.random.default_rng(0)
    tokens = random.integers(0, MODEL["vocab"], (BATCH, LENGTH + 1), dtype=np.int32)
    cuts = 2 + np.arange(BATCH) % (LENGTH - 4)
    ends = LENGTH - np.arange(BATCH) % 3
    at = np.arange(LENGTH)[None]
    second = at >= cuts[:, None]
    segments = np.where(at >= ends[:, None], 0, 1 + second)
    labels = np.where(
        (segments == 0) | (at == cuts[:, None] - 1) | (random.random((BATCH, LENGTH)) < 0.2), -1, tokens[:, 1:]
    )
    labels[3] = -1  # a row without one counted token
    found = dict(
        tokens=tokens[:, :-1], labels=labels, positions=np.where(second, at - cuts[:, None], at), segments=segments,
        index_B=np.arange(100, 100 + BATCH),
    )  # fmt: skip
    return {name: jnp.asarray(x, jnp.int32) for name, x in found.items()}


def layout(num_stages: int, num_devices: int = 8, rules: dict | None = None, **more: Any) -> Placement:
    """Stages on the axis "s", "t" beside it, and the batch over what is left."""
    pipeline = dict(schedule="1f1b", microbatches=4) | more.pop("pipeline", {})
    mapping = dict(
        mesh=dict(d=-1, s=num_stages, t=more.pop("tensor", 1)), rules=dict(batch="d", layers="s") | (rules or {}),
        pipeline=pipeline, **more,
    )  # fmt: skip
    return place(Layout.parse(mapping), num_devices)


def two_steps(step_config: StepConfig, here: Placement) -> tuple[dict, dict, dict]:
    """(metrics of the second step, gradients of the first, weights and moments after both), in logical shapes."""
    specs = state_specs(step_config.model, step_config.optimizer)
    state = initial_state(step_config.model, step_config.optimizer, 0, here)
    rate = np.float32(1e-2)
    step: Any = make_train_step(step_config, here, gradients=True)
    compiled = step.lower(state, batch(), rate).compile(compiler_options=QUICK)
    assert not permutes_in_branches(compiled.as_text() or "")
    state, metrics = compiled(state, batch(), rate)
    grads = metrics.pop("gradients")
    state, metrics = compiled(state, batch(), rate)
    metrics.pop("gradients")
    found = {
        "params": (state.params, specs.params),
        "moments": (state.opt_state, specs.opt_state),
        "grads": (grads, specs.params),
    }
    logical = {name: strip_tree(jax.device_get(tree), tree_specs, here) for name, (tree, tree_specs) in found.items()}
    return {k: float(v) for k, v in metrics.items()}, logical["grads"], {k: logical[k] for k in ("params", "moments")}


def permutes_in_branches(hlo: str) -> list[str]:
    """Permutes of a compiled program that not every stage may reach: in a branch or a loop over a flag, of a branch.

    On CPU devices a permute waits for all devices, whatever its pairs: under a branch that only some stages take it
    hangs or gives wrong numbers. The outer branch is that of the ops of a tick, the same on all stages.
    """
    module = parse_module(hlo)

    def walk(name: str, depth: int) -> Iterator[str]:
        for one in module.computations[name].instructions:
            if one.opcode.startswith("collective-permute") and depth > 1:
                yield one.name
            for body in {body for bodies in one.called.values() for body in bodies if body in module.computations}:
                yield from walk(body, depth + (one.opcode == "conditional" or module.turns_on_a_flag(one)))

    return list(walk(module.entry, 0))


@lru_cache
def expected(**model: Any) -> tuple[dict, dict, dict]:
    return two_steps(config(**model), single_placement())


def assert_equal(found: tuple, wanted: tuple) -> None:
    for name, value in wanted[0].items():
        assert found[0][name] == pytest.approx(value, rel=2e-5), name

    def close(path: Any, a: np.ndarray, b: np.ndarray) -> None:
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * max(np.abs(b).max(), 1e-3), err_msg=str(path))

    jax.tree_util.tree_map_with_path(close, found[1], wanted[1])

    # AdamW divides by the gradient's own size: an error of TOLERANCE in a gradient is one of about as much in an update
    # of learning rate 1e-2, except where a gradient is nearly zero; there the update can be off by all of itself.
    def near(path: Any, a: np.ndarray, b: np.ndarray) -> None:
        off = np.abs(a - b) > 1e-4
        assert off.mean() < 2e-3, path
        assert np.abs(a - b).max() < 4.1e-2, path

    jax.tree_util.tree_map_with_path(near, found[2], wanted[2])


@dataclass(frozen=True)
class Case:
    layout: dict[str, Any]
    model: dict[str, Any] = field(default_factory=dict)


ALL = dict(tied=True, dropout=0.3, num_layers=7)  # uneven pieces: the last one has a slot to spare
GEMMA: dict[str, Any] = dict(
    window=4, window_layers=(True, False), attention_softcap=2.0, logit_softcap=3.0, post_norms=True,
    norm_plus_one=True, tied=True, embed_scale=4.0, activation="geglu",
)  # fmt: skip

KEEP = dict(keep="residuals")

FAST = {
    "1f1b, tensor, uneven, tied, dropout": Case(dict(num_stages=4, tensor=2, rules=TENSOR), ALL),
    "residuals, interleaved, tensor, dots, uneven, tied, dropout": Case(
        dict(
            num_stages=2, tensor=2, rules=TENSOR, remat="dots", pipeline=dict(schedule="interleaved", repeats=2, **KEEP)
        ),
        ALL,
    ),
    "interleaved, zero3": Case(
        dict(num_stages=2, params=dict(embed="d"), pipeline=dict(schedule="interleaved", repeats=2))
    ),
    "zb_h1": Case(dict(num_stages=4, pipeline=dict(schedule="zb_h1"))),
}
SLOW = {
    "gpipe": Case(dict(num_stages=2, pipeline=dict(schedule="gpipe"))),
    "gpipe, uneven, tied, dropout": Case(dict(num_stages=4, pipeline=dict(schedule="gpipe")), ALL),
    "1f1b": Case(dict(num_stages=4)),
    "1f1b, 8 stages": Case(dict(num_stages=8)),
    "1f1b, tied, 2 stages": Case(dict(num_stages=2), dict(tied=True)),
    "fewer microbatches than stages": Case(dict(num_stages=8, pipeline=dict(microbatches=2)), ALL),
    "tensor, sequence": Case(dict(num_stages=2, tensor=2, rules=TENSOR, activations=dict(stream="t"))),
    "zero1": Case(dict(num_stages=2, optimizer=dict(embed="d"))),
    "zero2": Case(dict(num_stages=2, grads=dict(embed="d")), ALL),
    "zero3, gathered once a step": Case(dict(num_stages=2, params=dict(embed="d"))),
    "zero3, gathered in every pass": Case(
        dict(num_stages=2, params=dict(embed="d"), pipeline=dict(gather="pass")), ALL
    ),
    "state of the tables over the stages": Case(dict(num_stages=4, optimizer=dict(vocab=("s", "d")))),
    "remat": Case(dict(num_stages=2, remat="full", pipeline=dict(schedule="zb_h1"))),
    "accumulate": Case(dict(num_stages=2, accumulate=2, pipeline=dict(microbatches=2), num_devices=4)),
    "interleaved, tensor, zero1": Case(
        dict(num_stages=2, tensor=2, rules=TENSOR, optimizer=dict(embed="d"),
             pipeline=dict(schedule="interleaved", repeats=4)),
    ),
    "interleaved, 8 stages, empty pieces": Case(
        dict(num_stages=8, pipeline=dict(schedule="interleaved", repeats=2, microbatches=8)), ALL
    ),
    "interleaved, groups that p does not divide": Case(
        dict(num_stages=4, pipeline=dict(schedule="interleaved", repeats=2, microbatches=16), num_devices=4)
    ),
    "residuals, 1f1b": Case(dict(num_stages=4, pipeline=KEEP)),
    "residuals, gpipe, uneven, tied, dropout": Case(dict(num_stages=4, pipeline=dict(schedule="gpipe", **KEEP)), ALL),
    "residuals, zb_h1, tensor, uneven, tied, dropout": Case(
        dict(num_stages=2, tensor=2, rules=TENSOR, pipeline=dict(schedule="zb_h1", **KEEP)), ALL
    ),
    "residuals, zero3, gathered in every pass, full": Case(
        dict(num_stages=2, params=dict(embed="d"), remat="full", pipeline=dict(gather="pass", **KEEP)), ALL
    ),
    "residuals, accumulate": Case(
        dict(num_stages=2, accumulate=2, remat="names", pipeline=dict(microbatches=2, **KEEP), num_devices=4)
    ),
    "residuals, gemma": Case(dict(num_stages=2, tensor=2, rules=TENSOR, pipeline=KEEP), GEMMA),
    "declared layers": Case(dict(num_stages=2, pipeline=dict(layers=[5, 3]))),
    "zb_h1, tensor, uneven, tied, dropout": Case(
        dict(num_stages=2, tensor=2, rules=TENSOR, pipeline=dict(schedule="zb_h1")), ALL
    ),
    "gemma": Case(dict(num_stages=2, tensor=2, rules=TENSOR), GEMMA),
    "gpt2": Case(
        dict(num_stages=4),
        dict(norm="layer", activation="gelu", positions="learned", mlp_bias=True, attention_bias=True,
             attention_output_bias=True, tied=True, num_kv_heads=4),
    ),
}  # fmt: skip
CASES = FAST | SLOW
names = [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", names)
def test_equals_one_device(name: str) -> None:
    case = CASES[name]
    assert_equal(two_steps(config(**case.model), layout(**case.layout)), expected(**case.model))


def test_a_permute_under_a_branch_is_found() -> None:
    here = place(Layout.parse(dict(mesh=dict(s=4), rules=dict(layers="s"), pipeline={})), 4)

    def found(within: Callable[[jax.Array, jax.Array], jax.Array]) -> int:
        def tick(x: jax.Array) -> jax.Array:  # the outer branch is the same on all stages, the inner one is not
            return jax.lax.cond(x[0] > 0, lambda: within(jax.lax.axis_index("s") < 2, x), lambda: x)

        mapped = jax.shard_map(tick, mesh=here.mesh, in_specs=P("s"), out_specs=P("s"), check_vma=False)
        return len(permutes_in_branches(jax.jit(mapped).lower(jnp.zeros(8)).compile().as_text() or ""))

    def send(x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, "s", [(0, 1), (1, 0)])

    assert found(lambda first, x: send(x)) == 0
    assert found(lambda first, x: jax.lax.cond(first, lambda: send(x), lambda: x)) == 1
    assert found(lambda first, x: at_most_once(first, send, x)) == 1


def prepared(model: dict[str, Any], here: Placement) -> tuple[StepConfig, Any, Any]:
    """(config, weights in logical shapes, weights on the devices)."""
    step_config = config(**model)
    specs = state_specs(step_config.model, step_config.optimizer).params
    physical = initial_state(step_config.model, step_config.optimizer, 0, here).params
    return step_config, jax.tree.map(jnp.asarray, strip_tree(jax.device_get(physical), specs, here)), physical


def test_each_microbatch_has_the_loss_of_its_own_rows() -> None:
    """Case P1: one by one against one device; permuted rows permute the list. And the evaluation's sums agree."""
    here = layout(4, tensor=2, rules=TENSOR, pipeline=dict(microbatches=8))
    step_config, logical, physical = prepared(dict(num_layers=6, tied=True), here)
    specs = physical_specs(state_specs(step_config.model, step_config.optimizer).params, here)
    stages = PipelineStep(step_config.model, here, specs)

    def sums(params: Any, rows: Any) -> LossSums:
        return stages.gradient(params, rows, jnp.float32(1), step_config.z_loss, None)[1]

    compiled = jax.jit(sums).lower(physical, batch()).compile(compiler_options=QUICK)
    parts = microbatches(batch(), 8)
    wanted = jax.lax.map(
        lambda rows: loss_sums(logical, step_config.model, rows, single_placement(), z_loss=step_config.z_loss), parts
    )
    found = compiled(physical, batch())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)
    order = np.array([5, 2, 7, 0, 1, 3, 6, 4])
    permuted = {name: x[order].swapaxes(0, 1).reshape(-1, *x.shape[2:]) for name, x in parts.items()}
    found = compiled(physical, permuted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[order], rtol=1e-5), found, wanted)
    assert (
        len(set(np.round(np.asarray(wanted.loss_sum), 3))) == 8
    )  # a test that could not tell them apart is worth nothing


def test_evaluation() -> None:
    """Case N6 in short: a batch that the number of microbatches does not divide gives the same sums."""
    here = layout(2, pipeline=dict(schedule="interleaved", repeats=2, microbatches=4))
    step_config, logical, physical = prepared(dict(num_layers=7), here)
    rows = {name: x[:12] for name, x in batch().items()}
    found = make_eval_step(step_config, here)(physical, rows)
    wanted = make_eval_step(step_config, single_placement())(logical, rows)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)


def test_the_second_document_does_not_see_the_first() -> None:
    """Case N3: other tokens in the first document leave the loss of the second one and its gradients as they are."""
    here = layout(2)
    step_config, _, physical = prepared({}, here)
    specs = physical_specs(state_specs(step_config.model, step_config.optimizer).params, here)
    rows = batch()
    rows["labels"] = jnp.where(rows["segments"] == 2, rows["labels"], -1)
    changed = dict(rows, tokens=jnp.where(rows["segments"] == 1, (rows["tokens"] + 7) % 61, rows["tokens"]))
    stages = PipelineStep(step_config.model, here, specs)
    gradient = jax.jit(lambda rows: stages.gradient(physical, rows, jnp.float32(1), 0.0, None))
    (grads, sums, _), (other_grads, other_sums, _) = gradient(rows), gradient(changed)
    jax.tree.map(np.testing.assert_array_equal, sums, other_sums)
    jax.tree.map(np.testing.assert_array_equal, grads["layers"], other_grads["layers"])


@pytest.mark.slow
@pytest.mark.parametrize("num_stages", [2, 4])
def test_tied_tables_over_stages(num_stages: int) -> None:
    """Case P2: tensor 2, vocabulary 257, 20 steps; one stored table, whose loss stays on that of one device."""
    step_config = config(tied=True, vocab=257)
    losses = {}
    for here in (single_placement(), layout(num_stages, tensor=2, rules=TENSOR, optimizer=dict(vocab=("t", "s")))):
        state = initial_state(step_config.model, step_config.optimizer, 0, here)
        assert "output" not in state.params  # one stored table
        step: Any = make_train_step(step_config, here)
        compiled = step.lower(state, batch(), np.float32(1e-3)).compile(compiler_options=QUICK)
        found = []
        for _ in range(20):
            state, metrics = compiled(state, batch(), np.float32(1e-3))
            found.append((float(metrics["loss"]), float(metrics["grad_norm"])))
        losses[here.num_devices] = np.array(found)
    np.testing.assert_allclose(losses[8], losses[1], rtol=1e-4)
    assert losses[1][-1, 0] < losses[1][0, 0] - 0.2  # the weights have moved, so that a wrong gradient would show


def test_what_does_not_fit_is_an_error() -> None:
    pattern = ModelConfig(**(MODEL | dict(window=4, window_layers=(True, False))))
    with pytest.raises(InputError, match=r"pipeline.layers: pieces of \[1\] layers, but the pattern .* 2 layers long"):
        pipeline_stages(pattern, layout(8))
    with pytest.raises(InputError, match=r"32 in all. global_batch=32 or 64 would work"):
        layout(2, pipeline=dict(microbatches=8)).check_batch(48)


@pytest.mark.parametrize("layers", [8, 7])
def test_a_checkpoint_knows_nothing_of_the_pipeline(layers: int, tmp_path: Path) -> None:
    """Case K1 in short: saved under interleaved stages, read on one device and under other stages, and bit for bit."""
    step_config = config(num_layers=layers)
    specs = state_specs(step_config.model, step_config.optimizer)
    makers = {
        "ring": layout(2, pipeline=dict(schedule="interleaved", repeats=2)),
        "deep": layout(4),
        "one": single_placement(),
    }
    states = {name: initial_state(step_config.model, step_config.optimizer, 0, here) for name, here in makers.items()}
    with Checkpoints(tmp_path, CheckpointConfig(), print) as checkpoints:
        plain = make_device_order(specs, makers["ring"], back=True)(states["ring"])
        checkpoints.save(1, plain, specs, {})
    saved = find(tmp_path, print)
    assert saved.arrays["params/layers/mlp/down"][0][0] == layers
    for name, here in makers.items():
        found = make_device_order(specs, here)(restore(saved, specs, abstract_state(specs, here)))
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(found), jax.device_get(states[name]))


@pytest.mark.slow
def test_few_threads_are_enough() -> None:
    """Ops of a tick that run at once can hold every thread of the CPU client, each waiting for a partner: a hang.

    Without `Worker.one_by_one` this program hangs within a few steps.
    """
    command = [sys.executable, "-m", "tests.step.few_threads"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
