"""Fine-tuning as users do it: the script from beginning to end, and the 8B run from its folder's config alone."""

import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshtrain import plan, show, train
from meshtrain.model import RopeScaling
from meshtrain.run.arguments import parse
from meshtrain.run.config import load
from tests.io.hf.transformer import library, quietly
from tests.run.runs import ROOT

RUN = str(ROOT / "configs" / "runs" / "finetune_llama3_8b.py")
# As published beside the weights of Llama 3 8B; that of 3.1 scales the rotation besides.
LLAMA3_8B: dict[str, Any] = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=128000,
    eos_token_id=128001, hidden_act="silu", hidden_size=4096, initializer_range=0.02, intermediate_size=14336,
    max_position_embeddings=8192, model_type="llama", num_attention_heads=32, num_hidden_layers=32,
    num_key_value_heads=8, pretraining_tp=1, rms_norm_eps=1e-5, rope_scaling=None, rope_theta=500000.0,
    tie_word_embeddings=False, torch_dtype="bfloat16", transformers_version="4.40.0.dev0", use_cache=True,
    vocab_size=128256,
)  # fmt: skip
SCALED = dict(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder before its weights are there."""
    (tmp_path / "llama3_8b").mkdir()
    (tmp_path / "llama3_8b" / "config.json").write_text(json.dumps(LLAMA3_8B))
    return tmp_path / "llama3_8b"


def test_the_run_is_that_of_the_folder(folder: Path) -> None:
    asked = ["--config", RUN, f"--config.init={folder}"]
    config = load(parse(asked)).config
    assert (config.model.vocab, config.model.num_kv_heads, config.model.rope_scaling) == (128256, 8, None)
    assert config.precision.compute == "bfloat16"
    (folder / "config.json").write_text(json.dumps(LLAMA3_8B | dict(rope_scaling=SCALED)))
    scaled = load(parse(asked)).config.model
    assert scaled == replace(config.model, rope_scaling=RopeScaling("llama3", 8.0, 8192, 1.0, 4.0))


def test_it_is_shown_and_planned_without_its_weights_but_not_trained(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--config", RUN, f"--config.init={folder}", f"--config.workdir={tmp_path / 'run'}"]
    assert show.main([*asked, "--devices", "8"]) == 0
    assert "128256 x 4096" in capsys.readouterr().out.replace(",", "")
    cluster = ["--cluster", str(ROOT / "configs" / "clusters" / "h100_roce.py"), "--gpus", "8"]
    assert plan.main([*asked, *cluster, "--layout", str(ROOT / "configs" / "layouts" / "zero3_remat.py")]) == 0
    assert "H100" in capsys.readouterr().out
    assert train.main(asked) == 2
    error = capsys.readouterr().err
    assert all(text in error for text in (str(folder), "model.safetensors"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_script_teaches_a_tiny_model_to_answer(tmp_path: Path) -> None:
    transformers = library()
    script = [sys.executable, str(ROOT / "scripts" / "finetune_tiny.py"), str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers are the ones that were taught" in done.stdout
    # What it left behind is a folder that others load, and what its model says is what it was taught.
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "export")
    model = quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "export"))
    untaught = quietly(lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model"))
    question = [{"role": "user", "content": "What comes after seven?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    said = {}
    for name, one in (("taught", model), ("untaught", untaught)):
        generate = functools.partial(one.generate, **prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
        tokens = quietly(generate)
        said[name] = tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert said["taught"] == "After seven comes eight."
    assert said["untaught"] != said["taught"]
