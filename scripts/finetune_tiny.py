"""Fine-tunes a Hugging Face model from end to end on a laptop: python scripts/finetune_tiny.py [FOLDER]

A tiny Llama and its tokenizer are made on the spot (nothing is downloaded) and saved by transformers. Chats become
token sets through its chat template, a run starts from the folder and learns the answers alone, the result is exported
and loaded by transformers, which answers the questions. Half a minute on two cores. Needs meshtrain[hf].
"""

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
NUMBERS = [*ONES.split(), "eighteen", "nineteen", "twenty"]
CHATS = [
    [
        {"role": "user", "content": f"What comes after {number}?"},
        {"role": "assistant", "content": f"After {number} comes {following}."},
    ]
    for number, following in itertools.pairwise(NUMBERS)
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
RUN = """\
def get_config():
    return dict(
        init={model!r},
        data=dict(paths=[{corpus!r}], length=128, shift_windows=True),  # no chat is always cut in two
        optimizer=dict(learning_rate=3e-3, weight_decay=0.0, schedule=dict(warmup=20)),
        global_batch=8,
        steps=200,
        log_every=50,
        tensorboard=False,
        workdir={run!r},
        layout={layout!r},
        cpu_devices=2,
    )
"""


def make_model(folder: Path) -> None:
    """A Llama of random weights with a byte-level BPE of its own, as `save_pretrained` writes them."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([message["content"] for chat in CHATS for message in chat], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def door(name: str, *arguments: str) -> None:
    """Runs `python -m meshtrain.NAME` and stops here if it fails."""
    print(f"\n$ python -m meshtrain.{name} {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", f"meshtrain.{name}", *arguments], check=True)


def answer_all(folder: Path) -> int:
    """How many of the questions the exported model answers as it was taught; prints the first answers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    right = 0
    for number, (question, answer) in enumerate(CHATS):
        prompt = tokenizer.apply_chat_template(
            [question], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
        text = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        right += text == answer["content"]
        if number < 5:
            print(f"  {question['content']}  ->  {text}")
    return right


def main() -> int:
    """0 where the exported model has learned nearly all answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", metavar="FOLDER")
    folder = Path(parser.parse_args().folder or tempfile.mkdtemp(prefix="finetune_tiny_")).absolute()
    if missing := [name for name in ("torch", "transformers", "jinja2") if importlib.util.find_spec(name) is None]:
        print(f"error: {', '.join(missing)} missing: pip install 'meshtrain[hf]' brings them.", file=sys.stderr)
        return 2
    layout = Path(__file__).parents[1] / "configs" / "layouts" / "zero3.py"
    paths = {name: str(folder / name) for name in ("model", "corpus", "run", "export")}
    make_model(folder / "model")
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    (folder / "run.py").write_text(RUN.format(**paths, layout=str(layout)))
    door(
        "prepare", "--input", str(folder / "chats.jsonl"), "--chat-key", "messages", "--tokenizer", paths["model"],
        "--output", paths["corpus"], "--held-out", "0",
    )  # fmt: skip
    door("train", "--config", str(folder / "run.py"))
    door("convert", "export", paths["run"], "--to", paths["export"])
    print("\nwhat transformers generates from the export:", flush=True)
    right = answer_all(folder / "export")
    print(f"{right} of {len(CHATS)} answers are the ones that were taught; everything is in {folder}")
    return 0 if right >= 0.9 * len(CHATS) else 1


if __name__ == "__main__":
    sys.exit(main())
