"""Runs the real training step under each layout on a small model and says whether it computes what the reference does.

Each layout ends in one of three ways: refused before anything was compiled, with the findings; equal up to rounding;
or different, with the first wrong tensor in the order of the forward pass. A crash counts as different.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshtrain.errors import InputError
from meshtrain.layout import Finding, Layout, Placement, build_mesh, named_specs, single_placement
from meshtrain.layout.finding import ERROR, merge, raise_errors
from meshtrain.layout.mesh import FILL, MeshShape
from meshtrain.layout.roles import words
from meshtrain.model import describe, initialize, loss_sums
from meshtrain.run.config import RunConfig
from meshtrain.run.inventory import batch_specs, check_run
from meshtrain.run.proof.compare import Comparison, Difference, compare
from meshtrain.run.proof.explain import Explanation, explain
from meshtrain.run.proof.order import order_of_use
from meshtrain.run.proof.outcome import Case, Outcome, run_case
from meshtrain.run.proof.rows import ProofRows
from meshtrain.run.proof.shrink import Shrunk, least_devices, shrink, shrink_layout, shrink_mesh
from meshtrain.run.proof.tolerance import Tolerances, tolerances
from meshtrain.step import Precision, StepConfig, TrainState

# Of the order of the largest gradients of the small models, so that an update is a smooth function of the gradient.
# With the usual 1e-8 it is the gradient's sign, which rounding decides where a gradient is almost 0.
EPSILON = 0.1
LEARNING_RATE = 0.02

NUM_DEVICES = 8

REFERENCE = "one device"


@dataclass(frozen=True)
class Declared:
    """A layout to prove: its name, and the dict of its file."""

    name: str
    mapping: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What was found out about one layout. `comparison` is None where it was refused or crashed."""

    name: str
    axis_sizes: dict[str, int]
    shrunk_mesh: bool
    words: str
    findings: tuple[Finding, ...] = ()
    comparison: Comparison | None = None
    first: Difference | None = None
    explanation: Explanation | None = None
    crash: str | None = None
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """equal, DIFFERS, refused or CRASHED."""
        if any(finding.severity == ERROR for finding in self.findings):
            return "refused"
        if self.comparison is None:
            return "CRASHED"
        return "equal" if self.comparison.equal else "DIFFERS"


@dataclass(frozen=True)
class Proof:
    """The small case, the reference's outcome and what rounding explains of a difference from it.

    on: what the layouts run on, in words. start: the logical state from which they start, where they do not make
    their own.
    """

    shrunk: Shrunk
    case: Case
    reference_name: str
    reference: Outcome
    tolerances: Tolerances
    order: tuple[str, ...]
    on: str = "virtual CPU devices"
    start: TrainState | None = None


def prepare(
    config: RunConfig,
    layouts: Sequence[Declared],
    against: Declared | None,
    num_devices: int | None,
    num_steps: int,
    on_gpus: bool = False,
) -> tuple[Proof, list[tuple[Declared, Placement, tuple[Finding, ...]]]]:
    """Shrinks run and layouts, and runs the reference. Also each layout on its mesh, with what is wrong with it.

    num_devices: None for NUM_DEVICES, or more where a mesh has more axes than they can fill. on_gpus: the layouts run
    on the devices that JAX takes by default, and a reference of one device on the CPU. All then start from the state
    of the reference: the last bits of random numbers are not the same on both.
    """
    everything = [*layouts, *([against] if against else [])]
    parsed = [_parse(declared, num_devices) for declared in everything]
    if against:
        raise_errors(parsed[-1][2])
    sound = [(layout, sizes) for layout, sizes, _ in parsed if layout is not None]
    shrunk = shrink(config.model, [layout for layout, _ in sound], [sizes for _, sizes in sound])
    case = make_case(config, shrunk, num_steps)
    placed = [
        (declared, _place(layout, sizes), tuple(findings))
        for declared, (layout, sizes, findings) in zip(everything, parsed, strict=True)
    ]
    place = placed[-1][1] if against else _on_cpu() if on_gpus else single_placement()
    proof = make_proof(shrunk, case, place, against.name if against else "one CPU device" if on_gpus else REFERENCE)
    if on_gpus:
        proof = replace(proof, on=f"{jax.devices()[0].device_kind} devices", start=proof.reference.start)
    return proof, placed[: len(layouts)]


def make_case(config: RunConfig, shrunk: Shrunk, num_steps: int) -> Case:
    """The small computation: float32, the run's optimizer with a larger epsilon, a constant learning rate."""
    optimizer = replace(config.optimizer, eps=EPSILON)
    step = StepConfig(shrunk.model, optimizer, Precision("float32"), config.z_loss, config.seed)
    rows = ProofRows(shrunk.model.vocab, shrunk.length, config.seed)
    return Case(step, rows, shrunk.global_batch, num_steps, LEARNING_RATE)


def make_proof(shrunk: Shrunk, case: Case, place: Placement, name: str) -> Proof:
    """Runs the reference and derives tolerances and the order of the forward pass from it."""
    reference = run_case(case, place)
    if reference.faults:
        raise InputError(f"the reference ({name}) is faulty in itself: {'; '.join(reference.faults)}")
    largest = max(float(np.max(np.abs(g))) for g in reference.gradients.values())
    optimizer = case.config.optimizer.name
    counted = min(metrics["num_tokens"] for metrics in reference.metrics)
    limits = tolerances(case.config.model, case.num_tokens, counted, case.num_steps, largest, EPSILON, optimizer)
    return Proof(shrunk, case, name, reference, limits, tuple(_order(case)))


def prove(proof: Proof, declared: Declared, place: Placement, findings: Sequence[Finding] = ()) -> Verdict:
    """The verdict on one layout."""
    began = time.perf_counter()
    case = proof.case
    if all(finding.severity != ERROR for finding in findings):
        _, found = check_run(case.config, case.global_batch, proof.shrunk.length, place)
        findings = merge([*findings, *found])
    sizes = place.axis_sizes
    verdict = Verdict(declared.name, sizes, _shrunk_mesh(place), words(place), tuple(findings))
    if verdict.status != "refused":
        try:
            outcome = run_case(case, place, proof.start)
        except Exception as error:  # a proof says what happened and goes on with the next layout
            verdict = replace(verdict, crash=f"{type(error).__name__}: {error}")
        else:
            verdict = _compared(verdict, proof, outcome, place)
    return replace(verdict, seconds=time.perf_counter() - began)


def _compared(verdict: Verdict, proof: Proof, outcome: Outcome, place: Placement) -> Verdict:
    comparison = compare(proof.reference, outcome, proof.tolerances, proof.order)
    first = comparison.first()
    explanation = None
    specs = dict(named_specs(describe(proof.case.config.model)))
    if first is not None and first.path in specs:
        tensors = {"gradient": "gradients", "parameter": "params"}[first.what]
        found, expected = (getattr(side, tensors)[first.path] for side in (outcome, proof.reference))
        if first.what == "parameter":
            found, expected = (x - proof.reference.initial[first.path] for x in (found, expected))
        kind = "grads" if first.what == "gradient" else "optimizer"
        explanation = explain(found, expected, specs[first.path], kind, place)
    return replace(verdict, comparison=comparison, first=first, explanation=explanation)


def _parse(declared: Declared, num_devices: int | None) -> tuple[Layout | None, dict[str, int], list[Finding]]:
    """The layout and its sizes on the devices of the proof; None and findings where it cannot be read."""
    findings: list[Finding] = []
    try:
        layout = Layout.parse(declared.mapping, declared.name, findings=findings)
        if any(finding.severity == ERROR for finding in findings):
            return None, {}, findings
        sizes = shrink_mesh(layout.mesh, num_devices or max(NUM_DEVICES, least_devices(layout.mesh.sizes.values())))
        return shrink_layout(layout, sizes), sizes, findings
    except InputError as error:
        for line in str(error).splitlines():
            where, _, message = line.partition(": ")
            findings.append(Finding(ERROR, "refused", where, message))
        return None, {}, findings


def devices_needed(layouts: Iterable[Mapping[str, Any]]) -> int:
    """How many devices a proof of these layouts takes where no number is asked for."""
    meshes = [layout.get("mesh") for layout in layouts]
    return max([NUM_DEVICES, *(least_devices(mesh.values()) for mesh in meshes if isinstance(mesh, Mapping))])


def _place(layout: Layout | None, sizes: dict[str, int]) -> Placement:
    if layout is None:
        return single_placement()
    num = int(np.prod(list(sizes.values()), dtype=int))
    return Placement(layout, build_mesh(sizes, jax.devices()[:num]))


def _on_cpu() -> Placement:
    """One CPU device. InputError where JAX was told to leave the CPU alone."""
    try:
        devices = jax.devices("cpu")[:1]
    except RuntimeError as error:
        raise InputError(
            f"--gpus: the reference runs on the CPU, which JAX does not offer ({error}); with JAX_PLATFORMS=cuda,cpu,"
            " or without that variable, it does."
        ) from None
    return Placement(Layout(MeshShape({}), name=REFERENCE), build_mesh({}, devices))


def _shrunk_mesh(place: Placement) -> bool:
    return any(size not in (FILL, place.axis_sizes.get(axis)) for axis, size in place.layout.mesh.sizes.items())


def _order(case: Case) -> list[str]:
    """Paths of the weights in the order of the forward pass."""
    place = single_placement()
    batch = {
        name: jax.ShapeDtypeStruct(spec.shape, spec.dtype)
        for name, spec in batch_specs(case.global_batch, case.source.length)
    }
    params = jax.eval_shape(lambda: initialize(case.config.model, jax.random.key(0)))

    def loss(params: dict, batch: dict[str, jax.Array]) -> jax.Array:
        key = jax.random.key(0) if case.config.model.dropout else None
        return jnp.asarray(loss_sums(params, case.config.model, batch, place, dropout_key=key).loss_sum)

    return order_of_use(loss, params, batch)
