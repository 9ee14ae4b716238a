"""What XLA makes of each scheme for 16 H100s, compiled without a GPU: the collectives of the theory alone, to the byte.

Per device and layer, c devices, x = bytes of this device's keys and values: a ring sends x in each of c - 1 steps,
which is what an all-gather of c x bytes sends; backward the same again, and the gradients (float32: 2x) in c steps or
in one reduce-scatter. Ulysses sends queries, keys, values and the output, and backward the gradient of each.
"""

import json
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.parallel.attention.h100 import LAYERS, NUM_DEVICES, B, H, K, N, T

ROOT = Path(__file__).parents[3]
C, SWAP, RING = NUM_DEVICES, 4, 4  # usp: 4 x 4

BF16, F32 = 2, 4
KV = 2 * B * (T // C) * K * H * BF16  # a device's keys and values
Q = B * (T // C) * N * H * BF16  # a device's queries: as many bytes before a swap as after it

# Fewer key heads (2) than devices (16, or 4): as many copies as give each device one.
SWAPPED_KV = 2 * B * (T // C) * max(C, K) * H * BF16
USP_KV = 2 * B * (T // C) * max(SWAP, K) * H * BF16
USP_HELD = 2 * B * (T // RING) * (max(SWAP, K) // SWAP) * H * BF16  # what goes round in usp

EXPECTED = {
    "ring": {
        ("collective-permute", "bf16"): 2 * (C - 1) * KV,
        ("collective-permute", "f32"): C * 2 * KV,
    },
    "gather": {("all-gather", "bf16"): 2 * C * KV, ("reduce-scatter", "f32"): C * 2 * KV},
    "ulysses": {("all-to-all", "bf16"): 4 * Q + 2 * SWAPPED_KV},
    "usp": {
        ("all-to-all", "bf16"): 4 * Q + 2 * USP_KV,
        ("collective-permute", "bf16"): 2 * (RING - 1) * USP_HELD,
        ("collective-permute", "f32"): RING * 2 * USP_HELD,
    },
}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax_cuda13_plugin") is None, reason="needs the cuda13 extra")
@pytest.mark.parametrize("scheme", EXPECTED)
def test_collectives_on_h100(scheme: str) -> None:
    command = [sys.executable, "-m", "tests.parallel.attention.h100", scheme, "zigzag"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: Counter[tuple[str, str]] = Counter()
    for kind, dtype, size, times, beside in json.loads(done.stdout):
        found[kind, dtype] += size * times
        # What goes round is on its way while the device computes; positions and segments are too small to matter. In
        # usp the compiler's schedule leaves some of the (shorter) sends alone, though the program issues them as early.
        assert beside or kind != "collective-permute" or dtype == "s32" or scheme == "usp"
    ids = sum(found.pop(key) for key in list(found) if key[1] == "s32")
    assert found == {key: LAYERS * size for key, size in EXPECTED[scheme].items()}
    assert ids < 0.05 * found.total()


def test_a_ring_sends_what_an_all_gather_sends() -> None:
    """Wire bytes of ring algorithms: an all-gather of g bytes sends (c - 1) / c of them, as the ring's steps do."""
    gathered = EXPECTED["gather"]["all-gather", "bf16"] * (C - 1) // C
    assert EXPECTED["ring"]["collective-permute", "bf16"] == gathered
