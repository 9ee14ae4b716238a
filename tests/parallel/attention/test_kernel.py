"""The choice of the kernel, and what cuDNN's is asked: here XLA stands in for it, since there is no GPU."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshtrain.parallel.attention import Mask, kernel
from tests.parallel.attention.test_attend import H, T, compare, make, run
from tests.parallel.layouts import placed
from tests.parallel.references import documents

BFLOAT16 = jnp.dtype(jnp.bfloat16)
ROWS = [[20], [13], [1], []] * 2  # one document from the first token, then padding


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A mesh that says it is of GPUs, and float32 allowed so that numbers can be compared; what cuDNN was asked."""
    asked: list[dict[str, Any]] = []
    original = jax.nn.dot_product_attention

    def stand_in(q: Any, k: Any, v: Any, *, implementation: str, **options: Any) -> Any:
        asked.append(dict(options, implementation=implementation))
        return original(q, k, v, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    monkeypatch.setattr(kernel, "platform_of", lambda place: "gpu")
    refusals = kernel.cudnn_refusals

    def of_bfloat16(mask: Any, platform: str, _: Any, sizes: Any, hopper: bool) -> list[str]:
        return refusals(mask, platform, BFLOAT16, sizes, hopper)

    monkeypatch.setattr(kernel, "cudnn_refusals", of_bfloat16)
    return asked


@pytest.mark.parametrize("name", ["single", "an axis that nothing uses"])
@pytest.mark.parametrize("window", [None, 6])
def test_what_cudnn_is_asked_is_the_mask(gpu: list[dict[str, Any]], name: str, window: int | None) -> None:
    mask = Mask(H**-0.5, window=window, packed=False)
    compare_real(name, make(4, 2)[0], mask)
    assert {options["implementation"] for options in gpu} == {"cudnn"}


def compare_real(name: str, arrays: tuple[Any, ...], mask: Mask) -> None:
    """Rows of one document. What padding gives is seen by nobody, so that no gradient comes back to it."""
    rows = documents(ROWS, T)
    real = (rows[1] != 0)[:, :, None, None]
    arrays = (*arrays[:3], arrays[3] * real)
    found = run(placed(name), arrays, rows, mask)
    compare({**found, "out": found["out"] * real}, arrays, rows, mask)


def test_the_choice_is_said_once(gpu: list[dict[str, Any]], caplog: pytest.LogCaptureFixture) -> None:
    kernel._announced.clear()
    caplog.set_level(logging.INFO, "meshtrain")
    place = placed("single")
    for _ in range(2):
        for mask in (Mask(1.0, packed=False), Mask(1.0, softcap=2.0)):
            kernel.choose_kernel("auto", mask, place, BFLOAT16, (H, H))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "attention kernel: cudnn"
    assert second.startswith("attention kernel: xla (cudnn cannot be used: it has no soft-cap of scores (softcap=2.0);")


def test_heads_of_latent_attention_need_hopper() -> None:
    """DeepSeek-V3's: 192 wide, values 128. JAX has cuDNN do it from Hopper on, up to 256."""
    mask = Mask(1.0, packed=False)
    assert kernel.cudnn_refusals(mask, "gpu", BFLOAT16, (128, 64)) == []
    assert kernel.cudnn_refusals(mask, "gpu", BFLOAT16, (192, 128), hopper=True) == []
    assert "up to 128 (256 on" in kernel.cudnn_refusals(mask, "gpu", BFLOAT16, (192, 128))[0]
    assert "up to 256, not 264" in kernel.cudnn_refusals(mask, "gpu", BFLOAT16, (264, 128), hopper=True)[0]
    assert not kernel.on_hopper(placed("single"))


@pytest.mark.parametrize("W", [4, 16])
def test_values_are_as_wide_as_cudnn_asks(gpu: list[dict[str, Any]], W: int) -> None:
    """Padded for the kernel, which has no other way; the numbers are those of the narrower ones."""
    mask = Mask(H**-0.5, packed=False)
    rng = np.random.default_rng(0)
    shapes = (4, H), (2, H), (2, W), (4, W)
    arrays = tuple(jnp.asarray(rng.normal(size=(8, T, *shape)), jnp.float32) for shape in shapes)
    compare_real("single", arrays, mask)
    assert gpu
