"""GPUs that the compiler knows, and what is said of those that it does not."""

import pytest

from meshtrain.audit.compile import gpu_devices
from meshtrain.audit.targets import TARGETS, target
from meshtrain.errors import InputError


def test_each_target_is_a_text_of_its_own() -> None:
    texts = {target(gpu).text for gpu in TARGETS}
    assert len(texts) == len(TARGETS)
    assert all('platform_name: "CUDA"' in text and text.count("{") == text.count("}") for text in texts)


@pytest.mark.parametrize(
    ("gpu", "says"), [("v100", "CUDA 13"), ("h10", "Did you mean 'h100'"), ("tpu", "--backend cpu")]
)
def test_other_gpus_are_refused_with_a_way_out(gpu: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        target(gpu)


def test_without_the_cuda_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshtrain.audit.compile.can_compile_for_gpus", lambda: False)
    with pytest.raises(InputError, match=r"meshtrain\[cuda13\].*--backend cpu"):
        gpu_devices("h100", 8)


def test_nodes_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshtrain.audit.compile.can_compile_for_gpus", lambda: True)
    with pytest.raises(InputError, match="16 or 24 would work"):
        gpu_devices("h100", 20)
