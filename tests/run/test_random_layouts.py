"""Every layout is either refused by the check, with a message, or computes what one device computes."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

from meshtrain.errors import InputError
from meshtrain.layout import Layout
from meshtrain.layout.finding import ERROR
from tests.run.proofs import proof_of, verdict_on
from tests.run.random_layouts import Drawn, drawn

# Another seed draws other layouts: MESHTRAIN_TEST_SEED=1 pytest tests/run/test_random_layouts.py
SEED = int(os.environ.get("MESHTRAIN_TEST_SEED", "20261129"))
NUM_LAYOUTS, NUM_PARTS = 200, 4  # the parts run side by side


def look_at(layout: Drawn) -> str:
    """The verdict's status on a drawn layout; fails unless it is refused with a message or equal."""
    try:
        Layout.parse(layout.layout)
    except InputError:
        return "refused: cannot be read"
    verdict = verdict_on(proof_of(layout.model), layout.layout, layout.num_devices)
    if verdict.status == "refused":
        for finding in verdict.findings:
            assert finding.severity != ERROR or (finding.where and len(finding.message) > 20)
        return "refused: " + ", ".join(sorted({f.code for f in verdict.findings if f.severity == ERROR}))
    assert verdict.status == "equal", f"{layout}\n{verdict}"
    return "equal"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_layouts_are_refused_or_equal(part: int) -> None:
    counts: Counter[str] = Counter()
    each_part = NUM_LAYOUTS // NUM_PARTS

    @seed(SEED + part)
    @settings(
        max_examples=each_part, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
    )
    @given(drawn())
    def each(layout: Drawn) -> None:
        note(f"seed {SEED}, part {part}: {layout}")
        counts[look_at(layout)] += 1

    print(f"seed {SEED}, part {part}")
    each()
    print(dict(counts))
    assert sum(counts.values()) >= each_part
    assert counts["equal"] >= each_part // 5
