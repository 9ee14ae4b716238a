"""Places in the experts' queues against a count by hand, and that no layout changes them (case M3)."""

import jax.numpy as jnp
import numpy as np

from meshtrain.layout import single_placement
from meshtrain.layout.order import row_order
from meshtrain.parallel.experts import places_in_row
from tests.run.proofs import place_on


def by_hand(expert_BTk: np.ndarray, counted_BT: np.ndarray) -> np.ndarray:
    found = np.zeros_like(expert_BTk)
    for row in range(len(expert_BTk)):
        queue: dict[int, int] = {}
        for t, k in np.ndindex(*expert_BTk.shape[1:]):
            if counted_BT[row, t]:
                e = expert_BTk[row, t, k]
                found[row, t, k] = queue.get(e, 0)
                queue[e] = found[row, t, k] + 1
    return found


def test_an_expert_takes_tokens_in_the_rows_order_and_no_padding() -> None:
    rng = np.random.default_rng(0)
    expert = np.stack([[rng.permutation(4)[:2] for _ in range(16)] for _ in range(8)]).astype(np.int32)
    counted = rng.random((8, 16)) < 0.75
    wanted = by_hand(expert, counted)
    found = places_in_row(jnp.asarray(expert), jnp.asarray(counted), 4, single_placement())
    np.testing.assert_array_equal(np.asarray(found)[counted], wanted[counted])

    cut = place_on(8, dict(mesh=dict(d=2, c=4), rules=dict(batch="d", length="c"), attention="ring", order="zigzag"))
    order = row_order(cut, 16)
    assert order is not None
    dealt = places_in_row(jnp.asarray(expert[:, order]), jnp.asarray(counted[:, order]), 4, cut)
    np.testing.assert_array_equal(np.asarray(dealt)[counted[:, order]], wanted[:, order][counted[:, order]])
    assert (wanted[:, order] != wanted).any()  # the order matters, so that a wrong one would show
