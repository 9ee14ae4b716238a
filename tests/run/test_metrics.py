"""The metrics file has one whole record per step, across resumes, torn lines and full disks."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshtrain.errors import StorageError
from meshtrain.run import metrics
from meshtrain.run.metrics import Metrics


def record(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "loss": 1.0 / step, "grad_norm": 0.5, "tokens_per_s": 10.0} | more


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_beyond_the_restored_step_are_cut_off(tmp_path: Path) -> None:
    log = Metrics(tmp_path, 0, print, tensorboard=False)
    for step in (1, 2, 3, 4):
        log.write(record(step))
        if step == 2:
            log.write({"step": 2, "eval_loss": 0.25})
    log.close()
    with open(log.path, "a") as file:
        file.write('{"step": 5, "lo')  # a kill in mid-line
    again = Metrics(tmp_path, 2, print, tensorboard=False)
    assert [(r["step"], "eval_loss" in r) for r in written(log.path)] == [(1, False), (2, False), (2, True)]
    again.write(record(3, loss=9.0))
    again.close()
    assert [r["step"] for r in written(log.path)] == [1, 2, 2, 3]
    assert written(log.path)[-1] == record(3, loss=9.0)
    assert not list(tmp_path.glob("*.new"))


def test_numbers_come_back_bitwise_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    log = Metrics(tmp_path, 0, print, tensorboard=False)
    log.write(record(1, loss=0.1 + 2**-50, grad_norm=float("nan"), other=float("inf"), load=[0.5, float("nan")]))
    log.close()
    (found,) = written(log.path)
    assert found["load"] == [0.5, None]
    assert (found["loss"], found["grad_norm"], found["other"]) == (0.1 + 2**-50, None, None)


def test_a_log_that_cannot_be_written_is_said_once_and_caught_up_later(tmp_path: Path) -> None:
    said: list[str] = []
    log = Metrics(tmp_path, 0, said.append, tensorboard=False)
    log.write(record(1))
    log.path.rename(tmp_path / "kept")
    log.path.mkdir()  # opening it for writing fails
    log.write(record(2))
    log.write(record(3))
    assert len(said) == 1
    assert "wait in memory" in said[0]
    log.path.rmdir()
    (tmp_path / "kept").rename(log.path)
    log.write(record(4))
    log.close()
    assert [r["step"] for r in written(log.path)] == [1, 2, 3, 4]
    assert len(said) == 1


def test_what_could_never_be_written_is_said_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    log = Metrics(tmp_path, 0, said.append, tensorboard=False)
    log.path.mkdir()
    log.write(record(1))
    log.write(record(2))
    log.close()
    assert "2 records could not be written" in said[-1]


def test_a_failing_tensorboard_never_stops_training(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    said: list[str] = []
    log = Metrics(tmp_path, 0, said.append)
    log.write(record(1))
    log.write(record(2))
    log.close()
    assert [r["step"] for r in written(log.path)] == [1, 2]
    assert len([line for line in said if "TensorBoard" in line]) == 1


@pytest.mark.parametrize("restored", [0, 2])
def test_tensorboard_files_hold_the_values_and_hide_what_is_done_again(tmp_path: Path, restored: int) -> None:
    from tensorboardX.proto import event_pb2

    log = Metrics(tmp_path, restored, print)
    log.write(record(restored + 1))
    log.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    events, data = [], path.read_bytes()
    while data:  # TFRecord: length, its checksum, the record, its checksum
        size = int.from_bytes(data[:8], "little")
        events.append(event_pb2.Event.FromString(data[12 : 12 + size]))
        data = data[12 + size + 4 :]
    assert events[1].session_log.status == event_pb2.SessionLog.START
    assert events[1].step == restored + 1
    values = {value.tag: value.simple_value for value in events[2].summary.value}
    assert events[2].step == restored + 1
    assert values["loss"] == pytest.approx(1.0 / (restored + 1))
    assert "step" not in values


def test_what_is_no_record_takes_none_with_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnull\n{"a": 1}\n\xff\n\0\0\0{"step": 2}\n' + b"[" * 100_000 + b'\n{"step": 3}\n')
    assert [record["step"] for record in metrics.read(path)] == [1, 2, 3]
    assert metrics.cut_after(path, 2) == path.stat().st_size
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_log_that_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"metrics\.jsonl cannot be read: Is a directory"):
        metrics.cut_after(tmp_path / "metrics.jsonl", 2)


def test_reading_stops_at_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert metrics.read(path) == [{"step": 1}]
    assert metrics.read(tmp_path / "none") == []
