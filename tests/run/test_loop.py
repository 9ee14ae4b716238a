"""The loop inside one process: records, evaluation, the last checkpoint, one compilation (cases G3, K3, N5, N10)."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from meshtrain.io import checkpoint_folder
from meshtrain.io.loader import Batches
from meshtrain.run import loop, startup
from meshtrain.run.arguments import parse
from meshtrain.run.config import load
from meshtrain.run.progress import Progress
from meshtrain.step import learning_rate, state_specs
from tests.run.corpus import prepare_bytes
from tests.run.runs import MODEL, records, restored, run_here, write_run

BYTES = MODEL | {"vocab": 257}


def test_a_run_leaves_its_records_config_layout_and_last_checkpoint(unbroken: Path) -> None:
    assert sorted(records(unbroken)) == list(range(1, 9))
    first = records(unbroken)[1]
    assert first["loss"] == pytest.approx(np.log(MODEL["vocab"]), abs=0.2)
    assert first["tokens"] == 8 * 16
    assert first["perplexity"] == pytest.approx(np.exp(first["ce"]))
    assert "mfu" not in first  # no invented peak on a CPU
    stored = json.loads((unbroken / "run" / "config.json").read_text())
    assert stored["config"]["optimizer"]["learning_rate"] == 0.01
    assert stored["config"]["precision"] == {"compute": "float32"}
    assert json.loads((unbroken / "run" / "layout.json").read_text())["params"] == {"embed": "data"}
    assert checkpoint_folder.steps(unbroken / "run" / "checkpoints") == [6, 8]  # 3 went, and the last one is saved


def test_the_last_step_is_on_disk_as_it_was_in_memory(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case K3: 8 steps with a period of 3."""
    states = []
    right = loop.Checkpoints.save

    def spy(self: Any, step: int, state: Any, *rest: Any) -> None:
        states.append((step, jax.tree.map(np.array, state)))
        right(self, step, state, *rest)

    monkeypatch.setattr(loop.Checkpoints, "save", spy)
    run = write_run(tmp_path)
    assert run_here(*run, *here) == 0
    assert [step for step, _ in states] == [3, 6, 8]
    saved = checkpoint_folder.newest(tmp_path / "run" / "checkpoints", print)
    assert saved is not None
    assert saved.step == 8
    on_disk = restored(saved, load(parse(run)).config)
    for in_memory, stored in zip(jax.tree.leaves(states[-1][1]), on_disk.values(), strict=True):
        np.testing.assert_array_equal(in_memory, stored)


def test_a_save_that_fails_in_the_background_ends_the_run_within_a_period(
    tmp_path: Path, here: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case K3: the save after step 3 fails; by step 6 the run has ended."""

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_folder, "complete", full)
    assert run_here(*write_run(tmp_path, steps=1000), *here) == 4
    assert re.fullmatch(
        r"error: a checkpoint could not be saved in .*No space left on device\n", capsys.readouterr().err
    )
    assert 3 <= max(records(tmp_path)) <= 6


def test_a_record_carries_the_step_that_made_it(tmp_path: Path, unbroken: Path) -> None:
    """Case N10: the same steps by hand, one at a time, waiting for each."""
    request = load(parse(write_run(tmp_path)))
    config, progress = request.config, Progress(8, 1, quiet=True)
    place = startup.place_layout(request, 8, print)
    specs = state_specs(config.model, config.optimizer)
    step = startup.compile_step(config, place, progress)
    state = startup.first_state(config, specs, place, None, progress)
    source = startup.open_data(config, progress).train
    with Batches(source, place, global_batch=8, packed=config.data.packed) as batches:
        for number in range(3):
            rate = learning_rate(1e-2, config.optimizer.schedule, number, 8)
            state, values = step(state, next(batches), np.float32(rate))
            assert float(values["loss"]) == records(unbroken)[number + 1]["loss"]
    losses = [record["loss"] for record in records(unbroken).values()]
    assert len(set(losses)) == len(losses)  # or else a shift by one could not be seen


def test_one_compilation_each_for_training_and_evaluation(
    tmp_path: Path, here: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Case G3, also after a resume: counted in the compiler's own log."""
    run = write_run(tmp_path, data=prepare_bytes(tmp_path), model=BYTES, eval_every=2)
    jax.config.update("jax_log_compiles", True)  # for all threads, unlike the context manager
    try:
        for stop in (4, 8):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert run_here(*run, *here, f"--config.steps={stop}") == 0
            compiled = re.findall(r"Finished XLA compilation of jit\((\w+)\)", caplog.text)
            assert compiled.count("step") == 1
            assert compiled.count("evaluate") == 1
    finally:
        jax.config.update("jax_log_compiles", False)
    assert sorted(records(tmp_path, "eval_loss")) == [2, 4, 6, 8]


def test_evaluation_is_over_all_held_out_tokens_in_the_step_unit_of_training(tmp_path: Path, here: list[str]) -> None:
    keep = {"every": 3, "keep_last": 1, "keep_best": 2}
    run = write_run(tmp_path, data=prepare_bytes(tmp_path), model=BYTES, eval_every=3, checkpoint=keep)
    assert run_here(*run, *here) == 0
    found = records(tmp_path, "eval_loss")
    assert sorted(found) == [3, 6, 8]
    losses = {saved.step: saved.record["eval_loss"] for saved in all_saved(tmp_path)}  # by which the best ones stay
    best = sorted(found, key=lambda step: found[step]["eval_loss"])[:2]
    assert losses == {step: found[step]["eval_loss"] for step in sorted({*best, 8})}
    assert found[8]["eval_loss"] < found[3]["eval_loss"] < np.log(257) + 0.1
    manifest = json.loads((tmp_path / "prepared" / "held_out" / "manifest.json").read_text())
    tokens = sum(shard["num_tokens"] for shard in manifest["shards"])
    documents = sum(shard["num_documents"] for shard in manifest["shards"])
    assert found[8]["eval_tokens"] == tokens - documents  # the first token of a document is never predicted
    bytes_per_token = (tokens - documents) / tokens  # a byte is a token; an end id stands for no byte
    assert found[8]["eval_bits_per_byte"] == pytest.approx(found[8]["eval_loss"] / np.log(2) / bytes_per_token)


def all_saved(tmp_path: Path) -> list[checkpoint_folder.Saved]:
    folder = tmp_path / "run" / "checkpoints"
    return [checkpoint_folder.read(checkpoint_folder.step_folder(folder, n)) for n in checkpoint_folder.steps(folder)]


def test_steps_that_are_not_finite_end_the_run(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, max_skipped=3, optimizer={"learning_rate": 1e30, "clip": None}, steps=20)
    assert run_here(*run, *here) == 3
    captured = capsys.readouterr()
    assert "config.optimizer.learning_rate=1e+30 is far outside" in captured.out
    assert re.search(r"error: 3 steps in a row, up to step \d+, had a loss", captured.err)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["skipped"] for row in rows][-3:] == [1, 1, 1]
    assert rows[-1]["grad_norm"] is None


def test_a_profile_is_written(tmp_path: Path, here: list[str]) -> None:
    run = write_run(tmp_path, steps=4)
    assert run_here(*run, *here, "--config.profile=2:3") == 0
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert sorted(records(tmp_path)) == [1, 2, 3, 4]
