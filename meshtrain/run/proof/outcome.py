"""What a few real training steps give under one placement, brought back to the host in logical shapes.

On the way the things are looked at that a comparison of logical values cannot see: whether devices that should hold the
same copy do (bitwise), and whether the rows that pad the vocabulary stayed zero.
"""

import contextlib
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import numpy as np

from meshtrain.io.rows import Source
from meshtrain.layout import Placement, Tree, named_specs
from meshtrain.layout.padding import arrange_tree, pad_tree, strip_tree
from meshtrain.step import StepConfig, TrainState, make_train_step, state_shardings, state_specs
from meshtrain.step.state import make_initializer

Arrays = dict[str, np.ndarray]  # by path

# The same program, partitioned and fused as ever; only its machine code is made with less effort, in half the time.
# (Other fusions compile quicker still, but then initial weights differ in their last bits on pipeline stages.)
LIGHT: dict[str, Any] = {"xla_backend_optimization_level": 0}


@cache
def light_options() -> dict[str, Any]:
    """Those of LIGHT that this XLA knows."""
    known = {}
    for option, value in LIGHT.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda x: x).lower(0.0).compile(compiler_options={option: value})
            known[option] = value
    return known


@dataclass(frozen=True)
class Case:
    """What is computed, the same under every layout: `num_steps` steps on batches of `source`."""

    config: StepConfig
    source: Source
    global_batch: int
    num_steps: int
    learning_rate: float

    @property
    def num_tokens(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.source.length


@dataclass(frozen=True)
class Outcome:
    """metrics: of each step. gradients: of the first. initial, params, moments: before the first, after the last step.

    start: the whole initial state in logical shapes. faults: what is wrong with the arrays in themselves, in words.
    """

    metrics: tuple[dict[str, float], ...]
    initial: Arrays
    gradients: Arrays
    params: Arrays
    moments: Arrays
    start: TrainState
    faults: tuple[str, ...] = field(default=())
    routers: tuple[Arrays, ...] = field(default=())


def run_case(case: Case, place: Placement, start: TrainState | None = None) -> Outcome:
    """Initial state and `num_steps` of the real training step under a placement; errors as the step raises them.

    With `start` (of another outcome) the initial state is that one, and the initialiser of this placement is not run.
    """
    from meshtrain.io.loader import Batches

    config = case.config
    specs = state_specs(config.model, config.optimizer)
    state = _initial(case, specs, place) if start is None else _placed(start, specs, place)
    logical_start = strip_tree(jax.device_get(state), specs, place)
    faults = _faults("initial weights", state.params, specs.params, place)
    initial = _logical(state.params, specs.params, place)
    step: Any = make_train_step(config, place, gradients=True)
    compiled, rate = None, np.float32(case.learning_rate)
    metrics: list[dict[str, float]] = []
    routers: list[Arrays] = []
    gradients: Arrays = {}
    batches = Batches(case.source, place, global_batch=case.global_batch, stop_step=case.num_steps, num_threads=1)
    # Products in full float32: unasked, GPUs would round their factors to TF32.
    with jax.default_matmul_precision("highest"), batches:
        for batch in batches:
            compiled = compiled or step.lower(state, batch, rate).compile(compiler_options=light_options())
            state, found = compiled(state, batch, rate)
            first = found.pop("gradients")
            routers.append(_on_host(found.pop("routers", {})))
            if not metrics:
                gradients = _logical(first, specs.params, place)
                faults += _faults("gradients", first, specs.params, place)
            metrics.append({name: float(value) for name, value in found.items()})
    faults += _faults("parameters", state.params, specs.params, place)
    faults += _faults("moments", state.opt_state, specs.opt_state, place)
    return Outcome(
        metrics=tuple(metrics),
        routers=tuple(routers),
        initial=initial,
        gradients=gradients,
        params=_logical(state.params, specs.params, place),
        moments=_moments(state, specs, place),
        start=logical_start,
        faults=tuple(faults),
    )


def _initial(case: Case, specs: TrainState, place: Placement) -> TrainState:
    """The state that the initialiser makes on the devices of this placement."""
    initializer: Any = make_initializer(case.config.model, case.config.optimizer, place)
    seed = np.uint32(case.config.seed)
    return initializer.lower(seed).compile(compiler_options=light_options())(seed)


def _on_host(values: dict[str, jax.Array]) -> Arrays:
    return {name: np.asarray(value) for name, value in values.items()}


def _placed(start: TrainState, specs: TrainState, place: Placement) -> TrainState:
    """A logical state on the devices of this placement."""
    return jax.device_put(pad_tree(start, specs, place), state_shardings(specs, place))


def _logical(tree: Tree, specs: Tree, place: Placement) -> Arrays:
    """Arrays by path on the host, without padding and in the model's order."""
    stripped = strip_tree(jax.device_get(tree), specs, place)
    return dict(zip([path for path, _ in named_specs(specs)], jax.tree.leaves(stripped), strict=True))


def _moments(state: TrainState, specs: TrainState, place: Placement) -> Arrays:
    """The optimizer's arrays that belong to a weight, as `mu of layers/mlp/up`."""
    weights = [path for path, _ in named_specs(specs.params)]
    found = {}
    for path, value in _logical(state.opt_state, specs.opt_state, place).items():
        weight = next((weight for weight in weights if path.endswith("/" + weight)), None)
        if weight is not None:
            found[f"{path.removesuffix('/' + weight).split('/')[-1]} of {weight}"] = value
    return found


def _faults(what: str, tree: Tree, specs: Tree, place: Placement) -> list[str]:
    """Copies that differ between devices, and padding that is not zero."""
    faults = []
    arranged = arrange_tree(jax.device_get(tree), specs, place, back=True)
    for (path, spec), on_devices, x in zip(
        named_specs(specs), jax.tree.leaves(tree), jax.tree.leaves(arranged), strict=True
    ):
        if _copies_differ(on_devices):
            faults.append(f"{what}: the copies of {path} on different devices differ")
        outside = np.ones(x.shape, bool)
        outside[tuple(slice(size) for size in spec.shape)] = False
        if x[outside].any():
            faults.append(f"{what}: the padding of {path} [{', '.join(spec.dims)}] is not zero")
    return faults


def _copies_differ(x: jax.Array) -> bool:
    """Whether two devices that should hold the same part of an array do not, bit by bit."""
    seen: dict[str, np.ndarray] = {}
    for shard in x.addressable_shards:
        data = np.asarray(shard.data)
        if not np.array_equal(seen.setdefault(str(shard.index), data), data, equal_nan=True):
            return True
    return False
