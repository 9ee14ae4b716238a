"""Every layout is either refused by the check, with a message, or computes what one device computes."""

import os
from collections import Counter
from functools import cache

import jax
import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from meshtrain.errors import InputError
from meshtrain.layout import Layout, Placement, build_mesh, single_placement
from meshtrain.layout.finding import ERROR
from meshtrain.run.proof import Declared, Proof, make_proof, prove
from meshtrain.run.proof.outcome import Case
from meshtrain.run.proof.prove import EPSILON, LEARNING_RATE
from meshtrain.run.proof.rows import ProofRows
from meshtrain.run.proof.shrink import Shrunk
from meshtrain.step import OptimizerConfig, StepConfig
from tests.run.random_layouts import BATCH, LENGTH, MODELS, Drawn, drawn

# Another seed draws other layouts: MESHTRAIN_TEST_SEED=1 pytest tests/run/test_random_layouts.py
SEED = int(os.environ.get("MESHTRAIN_TEST_SEED", "20261129"))
NUM_LAYOUTS = 200


@cache
def proof_of(name: str) -> Proof:
    """The reference of a model: two steps on one device."""
    model = MODELS[name]
    config = StepConfig(model, OptimizerConfig(eps=EPSILON), z_loss=1e-3)
    case = Case(config, ProofRows(model.vocab, LENGTH), BATCH, 2, LEARNING_RATE)
    return make_proof(Shrunk(model, LENGTH, BATCH, ()), case, single_placement(), "one device")


def look_at(layout: Drawn) -> str:
    """The verdict's status on a drawn layout; fails unless it is refused with a message or equal."""
    proof = proof_of(layout.model)
    try:
        parsed = Layout.parse(layout.layout)
    except InputError as error:
        assert len(str(error)) > 20
        return "refused: cannot be read"
    sizes = parsed.mesh.resolve(layout.num_devices)
    place = Placement(parsed, build_mesh(sizes, jax.devices()[: layout.num_devices]))
    verdict = prove(proof, Declared("drawn", layout.layout), place, start=proof.reference.start)
    if verdict.status == "refused":
        for finding in verdict.findings:
            assert finding.severity != ERROR or (finding.where and len(finding.message) > 20)
        return "refused: " + ", ".join(sorted({f.code for f in verdict.findings if f.severity == ERROR}))
    assert verdict.status == "equal", f"{layout}\n{verdict}"
    return "equal"


@pytest.mark.slow
def test_random_layouts_are_refused_or_equal() -> None:
    counts: Counter[str] = Counter()

    @seed(SEED)
    @settings(
        max_examples=NUM_LAYOUTS, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
    )
    @given(drawn())
    def each(layout: Drawn) -> None:
        note(f"seed {SEED}: {layout}")
        counts[look_at(layout)] += 1

    print(f"seed {SEED}")
    each()
    print(dict(counts))
    assert sum(counts.values()) >= NUM_LAYOUTS
    assert counts["equal"] >= NUM_LAYOUTS // 3
