"""The door `show`: tables, differences and findings of any layout file on disk, at any size, without devices."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import pytest

from meshtrain import show
from meshtrain.layout import Layout, place
from meshtrain.run.config import RunConfig
from meshtrain.run.show import make_report, report_text
from meshtrain.step import initial_state
from tests.goldens.cases import ROOT, run_of

TENSOR = dict(batch="data", heads="tensor", kv_heads="tensor", mlp="tensor", vocab="tensor")


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    """A run on the tiny model, anywhere on disk."""
    model = (
        "num_layers=2, embed=64, num_heads=8, num_kv_heads=4, head_dim=8, mlp=128, vocab=512, max_length=64, tied=True"
    )
    text = (
        "def get_config():\n"
        f"    return dict(model=dict({model}), data=dict(kind='synthetic', length=32), global_batch=16, steps=1,\n"
        f"                workdir='{tmp_path}', layout='{ROOT}/configs/layouts/zero3.py', cpu_devices=8)\n"
    )
    (tmp_path / "run.py").write_text(text)
    return str(tmp_path / "run.py")


def layout_file(folder: Path, **declared: Any) -> str:
    (folder / "mine.py").write_text(f"def get_config():\n    return {declared!r}\n")
    return str(folder / "mine.py")


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = show.main(argv)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_layout_anywhere_on_disk(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = layout_file(tmp_path, mesh=dict(slow=-1, fast=2), rules=dict(batch="slow", mlp="fast"))
    code, text = shown(capsys, "--config", run_file, "--layout", mine, "--devices", "8")
    assert code == 0
    assert "mine on 8 devices" in text
    assert "slow=4 x fast=2  (slowest-changing first)" in text  # in the order of the file
    assert "data parallelism over slow with tensor parallelism of the MLP over fast" in text
    assert "16 sequences x 32 tokens = 512 tokens a step" in text
    assert "= 4 a device x 4 parts (slow) x 1 microbatch" in text
    assert "[layers, embed, mlp_fast]" in text


def test_all_that_is_wrong_at_once(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cases L1, L2: what cannot be read, what cannot be placed and the batch, in one report; exit code 2."""
    mine = layout_file(
        tmp_path, mesh=dict(data=-1, tensor=4), rules=dict(TENSOR, bacth="data", vocab="tensr"), accumulate=5
    )
    code, text = shown(capsys, "--config", run_file, "--layout", mine, "--config.model.mlp=126")
    assert code == 2
    for part in (
        "rules.bacth: there is no dim 'bacth'. Did you mean 'batch'?",
        "rules.vocab: the mesh has no axis 'tensr'. Did you mean 'tensor'?",
        "rules.mlp: tensor=4 would cut the dim 'mlp' (size 126, width of the MLP's hidden layer) into 4 parts",
        "global_batch: 16 sequences do not divide into 2 parts",
        "4 errors, 0 warnings",
    ):
        assert part in " ".join(text.split()), text


def test_key_heads_that_do_not_divide(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Case L3."""
    mine = layout_file(tmp_path, mesh=dict(data=-1, tensor=4), rules=TENSOR)
    heads = ("--config.model.num_heads=12", "--config.model.num_kv_heads=3")
    code, text = shown(capsys, "--config", run_file, "--layout", mine, *heads)
    assert code == 2
    assert "rules.kv_heads: tensor=4 would cut the dim 'kv_heads' (size 3" in " ".join(text.split())


def test_what_only_the_exchange_can_refuse(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = layout_file(tmp_path, mesh=dict(data=-1), rules=dict(batch="data"), attention="telepathy")
    code, text = shown(capsys, "--config", run_file, "--layout", mine)
    assert code == 2
    assert "telepathy" in text


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (dict(mesh=dict(data="8")), "error: mesh.data: the size must be a positive integer or -1"),
        (dict(mesh=dict(data=-2, tensor=2)), "error: mesh.data: the size must be a positive integer or -1"),
        (dict(mesh=dict(data=-1), pipeline={}), "error: rules.layers: a pipeline's stages are one mesh axis"),
        (
            dict(mesh=dict(data=-1, stage=2), rules=dict(batch="data", layers="stage"), pipeline=dict(microbatches=0)),
            "error: pipeline.microbatches: expected a whole number of at least 1, not 0; 1 is the default.",
        ),
    ],
)
def test_a_mesh_or_stages_that_cannot_be_read_are_all_that_is_said(
    declared: dict[str, Any], expected: str, run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither follows from the other: no trace of a step without stages, and no other size that would fit."""
    code, text = shown(capsys, "--config", run_file, "--layout", layout_file(tmp_path, **declared), "--devices", "8")
    assert (code, text.count("\n")) == (2, 1), text
    assert text.startswith(expected)


def test_strict_makes_warnings_errors(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = layout_file(tmp_path, mesh=dict(data=2, spare=4), rules=dict(batch="data"))
    code, text = shown(capsys, "--config", run_file, "--layout", mine)
    assert code == 0
    assert "warning: mesh.spare: nothing is cut over it: its 4 devices all compute the same." in text
    assert "1 warning" in text
    assert shown(capsys, "--config", run_file, "--layout", mine, "--strict")[0] == 2


def test_the_fast_links_of_a_node(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = layout_file(tmp_path, mesh=dict(tensor=4, data=-1), rules=TENSOR)
    code, text = shown(capsys, "--config", run_file, "--layout", mine, "--devices-per-node", "4")
    assert code == 0
    assert "Write 'tensor' last in `mesh`" in " ".join(text.split())
    large = layout_file(tmp_path, mesh={"data": -1, "tensor": 4}, rules=TENSOR)
    for cluster, warns in (("h100_roce", False), ("l40s_pcie", True)):
        file = str(ROOT / "configs" / "clusters" / f"{cluster}.py")
        text = shown(capsys, "--config", run_file, "--layout", large, "--cluster", file)[1]
        assert ("share fast links" in " ".join(text.split())) == warns


def test_json_for_programs(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = shown(capsys, "--config", run_file, "--json")
    report = json.loads(text)
    assert code == 0
    assert report["zero_stage"] == 3
    assert report["mesh"] == {"data": 8}
    (table,) = [a for a in report["arrays"] if a["path"] == "embedding/table" and a["kind"] == "params"]
    assert table["cut"] == "[vocab, embed_data]"
    assert table["num_bytes"] == 512 * 64 * 4 // 8
    assert report["state_bytes_per_device"]["params"] == sum(
        a["num_bytes"] for a in report["arrays"] if a["kind"] == "params"
    )


def test_difference_of_two_layouts(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = str(ROOT / "configs/layouts/tensor_zero3.py")
    code, text = shown(capsys, "--config", run_file, "--diff", other)
    assert code == 0
    assert "zero3 -> tensor_zero3" in text
    assert "mesh  data=8  ->  data=4 x tensor=2" in text
    assert "[layers, embed_data, mlp]" in text
    assert "[layers, embed_data, mlp_tensor]" in text
    assert "constraints are cut otherwise" in text
    code, text = shown(capsys, "--config", run_file, "--diff", str(ROOT / "configs/layouts/zero3.py"))
    assert "PARAMS: 0 of 11 arrays are cut otherwise" in text


def test_a_picture_of_any_array(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = shown(capsys, "--config", run_file, "--array", "params/layers/mlp/up")
    assert code == 0
    assert "params/layers/mlp/up  [layers, embed, mlp] 2 x 64 x 128" in text
    code, text = shown(capsys, "--config", run_file, "--array", "layers/mlp/upp")
    assert code == 2
    assert "there is no array 'layers/mlp/upp'. Did you mean" in text


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("configs/layouts/zero3.py",), "did you mean --layout configs/layouts/zero3.py?"),
        (("--devices", "none"), "is not a whole number"),
        (("--device", "8"), "--device: no such argument. Did you mean '--devices'?"),
        (("--json", "--array", "params/x"), "--array: a picture is of one layout, in text"),
        (
            ("--config", "configs/runs/quickstart.py", "--diff", "nowhere.py"),
            "--diff=nowhere.py: there is no such file",
        ),
        (("--config", "configs/runs/quickstart.py", "--layout.mesh=8"), "error: mesh: expected a dict"),
        ((), "--config: name a run's file"),
        (("--help",), "--devices N"),
    ],
)
def test_arguments(argv: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = shown(capsys, *argv)
    assert expected in text


@pytest.mark.parametrize("layout", ["zero1", "tensor_zero3", "hsdp", "pipeline_tensor_zero1"])
def test_the_real_state_has_the_bytes_that_are_shown(layout: str) -> None:
    """Case L1: bytes per device of the real arrays equal the table's."""
    from meshtrain.run import config_file

    run: RunConfig = run_of("tiny", length=32, global_batch=16, compute="float32")
    values = config_file.read(str(ROOT / "configs" / "layouts" / f"{layout}.py"), "layout").values
    report = make_report(run, values, layout, 8)
    state = initial_state(run.model, run.optimizer, 0, place(Layout.parse(values)))
    arrays = jax.tree.leaves((state.params, state.opt_state))
    for device in jax.devices():
        held = sum(s.data.nbytes for x in arrays for s in x.addressable_shards if s.device == device)
        assert held == report.state_bytes["optimizer"]


@pytest.mark.slow
def test_every_layout_file_is_sound_on_the_tiny_model() -> None:
    """Only what a file declares is noted; and its words are not empty."""
    from meshtrain.run import config_file

    runs = {model: run_of(model, length=512, global_batch=128, compute="float32") for model in ("tiny", "tiny_moe")}
    # its 64 devices to an expert group have no use for 8 experts
    published = dict(deepseek_v3=run_of("deepseek_v3", length=4096, global_batch=15360, compute="bfloat16"))
    for file in sorted((ROOT / "configs" / "layouts").glob("*.py")):
        values = config_file.read(str(file), "layout").values
        fixed = math.prod(size for size in values["mesh"].values() if size > 0)
        run = published.get(file.stem, runs["tiny_moe" if "expert" in values.get("rules", {}) else "tiny"])
        report = make_report(run, values, file.stem, fixed * max(8 // fixed, 1))
        assert report.count("error") == 0, report_text(report)
        warned = {(finding.code, finding.where) for finding in report.findings if finding.severity == "warning"}
        # expert_tensor cuts MLPs of layers without experts, of which tiny_moe has none
        allowed = {("unused-rule", "rules.mlp")} if run is runs["tiny_moe"] else set()
        assert warned <= allowed, report_text(report)


@pytest.mark.slow
def test_llama_405b_on_16384_devices_in_seconds() -> None:
    """The whole process, imports included: 5 seconds of one core, and no device is touched."""
    argv = ["--config", "configs/runs/llama3_405b.py", "--devices", "16384", "--layout.mesh.tensor=8"]
    code = (
        "import sys, time, resource; from meshtrain import show; code = show.main(sys.argv[1:]);"
        "from jax._src import xla_bridge; assert not xla_bridge._backends, 'a device was touched';"
        "print('seconds', sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), file=sys.stderr); sys.exit(code)"
    )
    began = time.perf_counter()
    ran = subprocess.run([sys.executable, "-c", code, *argv], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "data=2048 x tensor=8" in ran.stdout
    seconds = float(ran.stderr.split("seconds")[-1])
    assert seconds < 5, f"{seconds:.1f} s of the processor, {time.perf_counter() - began:.1f} s by the clock"


def test_a_pipeline_is_shown_with_its_idle_share_and_gathers(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shares from the executor's own table: (p - 1) / (m + p - 1) for 1F1B; zero-bubble pays for the lock step."""
    declared: dict[str, Any] = dict(
        mesh=dict(data=-1, stage=2), rules=dict(batch="data", layers="stage"), params=dict(embed="data"),
        pipeline=dict(schedule="1f1b", microbatches=4, gather="pass"),
    )  # fmt: skip
    code, text = shown(capsys, "--config", run_file, "--layout", layout_file(tmp_path, **declared))
    assert code == 0
    assert "1f1b, 2 stages x 1 piece of 1 layer, 4 microbatches" in text
    assert "idle 20.0% as run, in lock step; at most 3 saved inputs a stage" in text
    assert "made whole in every forward and backward pass of a piece" in text
    assert "stage 1 |.. F0 B0 F1 B1 F2 B2 F3 B3 ..|" in text
    declared["pipeline"] = dict(schedule="zb_h1", microbatches=4)
    _, text = shown(capsys, "--config", run_file, "--layout", layout_file(tmp_path, **declared), "--json")
    found = json.loads(text)["pipeline"]
    assert (found["gather"], found["live_inputs"]) == ("step", 3)
    assert found["lock_step_idle"] == pytest.approx(1 / 7)
    assert found["idle"] == pytest.approx(1 / 13)


def test_pieces_are_counted_in_layers_with_experts(
    run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first dense layers, and those between, belong to no piece of their own (model/stages.py)."""
    declared: dict[str, Any] = dict(
        mesh=dict(data=-1, stage=2), rules=dict(batch="data", layers="stage"),
        pipeline=dict(microbatches=4, layers=[3, 1]),
    )  # fmt: skip
    moe = "{'num_experts': 4, 'top_k': 2, 'mlp': 16, 'first_dense': 1}"
    asked = ("--config", run_file, "--layout", layout_file(tmp_path, **declared), f"--config.model.moe={moe}")
    code, text = shown(capsys, *asked, "--config.model.num_layers=5", "--json")
    assert code == 0, text
    assert json.loads(text)["pipeline"]["layers"] == [3, 1]
