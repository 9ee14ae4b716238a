"""The door `prove`: a table, an exit code for CI, and words for what is wrong. Any layout file, several at once."""

from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import pytest

from meshtrain import prove
from meshtrain.run import distributed
from meshtrain.run.proof import outcome
from tests.run.test_show import TENSOR, layout_file, run_file

__all__ = ["run_file"]  # a fixture


def proved(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = prove.main(argv)
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


@pytest.mark.slow
def test_equal_and_refused_side_by_side(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], here: list[str]
) -> None:
    mine = layout_file(tmp_path, mesh=dict(data=-1, fast=16), rules=dict(batch="data", mlp="fast"))
    (tmp_path / "typo.py").write_text("def get_config():\n    return dict(mesh=dict(x=-1), rules=dict(bacth='x'))\n")
    code, text = proved(capsys, "--config", run_file, *here, mine, str(tmp_path / "typo.py"), "--steps", "2")
    assert code == 2
    assert "2 steps of the real training step in float32" in text
    assert "The model is shrunk: " in text
    assert "embed 64 -> 32" in text
    assert "mine data=4 x fast=2 (shrunk) " in text
    assert "typo is refused: rules.bacth: there is no dim 'bacth'. Did you mean 'batch'?" in text
    assert text.count(" equal") >= 1


@pytest.mark.slow
def test_a_difference_is_explained(
    run_file: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    here: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum over the batch's parts that is a mean: exit code 1, the first wrong tensor, its factor, the cause."""
    embedding = import_module("meshtrain.parallel.embedding")
    original = embedding._backward

    def averaged(place: Any, kept: Any, dx: jax.Array) -> Any:
        table, none = original(place, kept, dx)
        return table / max(place.num_shards("batch"), 1), none

    mine = layout_file(tmp_path, mesh=dict(data=4, tensor=2), rules=TENSOR)
    jax.clear_caches()
    embedding._embed.defvjp(embedding._forward, averaged)
    try:
        code, text = proved(
            capsys, "--config", run_file, *here, "--config.model.tied=false", mine, "--steps=1", "--devices=8"
        )
    finally:
        embedding._embed.defvjp(embedding._forward, original)
        jax.clear_caches()
    assert code == 1
    assert "mine DIFFERS: data parallelism over data with Megatron tensor parallelism over tensor" in text
    assert "The first, in the order of the forward pass, is the gradient of embedding/table" in text
    assert "is 1/4 times what it should be in every entry: 1 over the size of `data`" in text
    assert "averaged where they must add up" in text
    assert "all gradients from layers/attention_norm/scale on are right" in text


@pytest.mark.slow
def test_against_another_layout(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], here: list[str]
) -> None:
    mine = layout_file(tmp_path, mesh=dict(data=2), rules=dict(batch="data"), accumulate=2)
    code, text = proved(capsys, "--config", run_file, *here, "--against", mine, mine, "--steps=1")
    assert code == 0
    assert "compared with mine" in text
    assert "mine data=2 0.0e+00 0.0e+00 0.0e+00 0.0e+00 equal" in text


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert proved(capsys, "--help")[0] == 0
    code, text = proved(capsys, "mine.py")
    assert code == 2
    assert "--config: name a run's file" in text
    code, text = proved(capsys, "--config", "run.py", "mine.py", "--agains", "other.py")
    assert code == 2
    assert "--agains: no such argument. Did you mean '--against'?" in text


def test_a_reference_that_cannot_be_read_is_not_replaced_by_one_device(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], here: list[str]
) -> None:
    wrong = layout_file(tmp_path, mesh=dict(data=2), rules=dict(bacth="data"))
    code, text = proved(capsys, "--config", run_file, *here, "--against", wrong, wrong)
    assert code == 2
    assert "error: rules.bacth: there is no dim 'bacth'. Did you mean 'batch'?" in text


@pytest.mark.slow
def test_on_gpus_the_reference_is_a_cpu(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With CPU devices in the place of GPUs: layouts start from the reference's state, not from their own."""
    code, text = proved(capsys, "--config", run_file, *here, "--gpus")
    assert code == 2
    assert "--gpus: there is no GPU to use" in text
    initialised = []
    original = outcome._initial

    def counted(case: outcome.Case, specs: Any, place: Any) -> Any:
        initialised.append(place.layout.name)
        return original(case, specs, place)

    monkeypatch.setattr(outcome, "_initial", counted)
    monkeypatch.setattr(distributed, "set_up_gpus", lambda request, number, say: number or 4)
    mine = layout_file(tmp_path, mesh=dict(data=-1), rules=dict(batch="data"), params=dict(embed="data"))
    code, text = proved(capsys, "--config", run_file, *here, "--gpus", "--steps=1", mine)
    assert code == 0
    assert "in float32 on cpu devices, compared with one CPU device" in text
    assert "mine data=4 " in text
    assert initialised == ["one device"]
