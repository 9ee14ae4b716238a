"""Chats: the text of the tokenizer's own template, and a loss on the answers and on nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshtrain.errors import InputError
from meshtrain.io.chat import load_template
from meshtrain.io.config import PrepareConfig
from meshtrain.io.preparation import prepare
from meshtrain.io.tokenizer import load_tokenizer
from meshtrain.io.tokens import open_token_set
from meshtrain.io.windows import HeldOutWindows, Windows

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# A begin token first, no words that ask for an answer, answers marked by the block that transformers knows.
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ raise_exception('Only user and assistant!') }}{% endif %}{% endfor %}"
)
# Writes the last turn in another way than those before it.
FORGETFUL = (
    "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}{% else %}-{% endif %}|"
    "{% endfor %}"
)
# Only the last answer keeps its thoughts, as Qwen3's do.
THINKING = CHATML.replace(
    "+ message['content']",
    "+ ('<think>\n\n</think>\n\n' if loop.last and message['role'] == 'assistant' else '') + message['content']",
)
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Eins, é."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Zwei."},
]


SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def make_tokenizer(
    folder: Path,
    template: str,
    end: str = "<|im_end|>",
    bos: bool = False,
    special: tuple[str, ...] = SPECIAL,
    text: str = "Eins Zwei brief One Two",
) -> Path:
    """Bytes with merges, special tokens (the first begins a text), a template beside them, as in a model's folder."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    folder.mkdir(parents=True, exist_ok=True)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([text] * 5, trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
        )
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": end, "bos_token": {"__type": "AddedToken", "content": special[0]}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_chats(path: Path, *chats: Any) -> Path:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def prepared(tmp_path: Path, tokenizer: Path, *chats: Any) -> Any:
    file = write_chats(tmp_path / "chats.jsonl", *chats)
    config = PrepareConfig(
        input=(str(file),), tokenizer=str(tokenizer), output=str(tmp_path / "out"), chat_key="messages", held_out=0
    )
    prepare(config, progress=False)
    return open_token_set(tmp_path / "out" / "train")


def learned(tokens: Any, tokenizer: Path) -> list[str]:
    """The runs of tokens that are predicted, as text, special tokens shown."""
    from tokenizers import Tokenizer

    rows = Windows(tokens, tokens.num_tokens).rows(np.array([0]))
    backend, runs = Tokenizer.from_file(str(tokenizer / "tokenizer.json")), [[]]  # type: ignore[var-annotated]
    for label in rows["labels"][0].tolist():
        if label >= 0:
            runs[-1].append(label)
        elif runs[-1]:
            runs.append([])
    return [backend.decode(run, skip_special_tokens=False) for run in runs if run]


def test_only_answers_are_learned_each_with_its_end(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", CHATML)
    tokens = prepared(tmp_path, tokenizer, CHAT, CHAT[1:3])
    assert learned(tokens, tokenizer) == [
        "Eins, é.<|im_end|>", "Zwei.<|im_end|>", "Eins, é.<|im_end|>",
    ]  # fmt: skip
    # The end token of the last answer is the document's one end token.
    ends = tokens.document_ends(0, tokens.num_tokens)
    stream = tokens.read(0, tokens.num_tokens)
    assert len(ends) == 2
    assert all(stream[end - 1] == tokens.end_id and stream[end - 2] != tokens.end_id for end in ends)
    # Segments and positions restart with each chat, as with any document: chats are packed into a row.
    rows = Windows(tokens, tokens.num_tokens).rows(np.array([0]))
    assert rows["positions"][0][ends[0]] == 0
    assert rows["segments"][0][ends[0]] == rows["segments"][0][ends[0] - 1] + 1


def test_an_answer_that_is_written_in_another_way_once_more_follow(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", THINKING)
    tokens = prepared(tmp_path, tokenizer, CHAT)
    assert learned(tokens, tokenizer) == ["Eins, é.<|im_end|>", "<think>\n\n</think>\n\nZwei.<|im_end|>"]


def test_the_text_is_that_of_the_template_whatever_marks_its_answers(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", INST, end="</s>", bos=True)
    chat = [*CHAT[1:], {"role": "user", "content": "Three?"}]  # what is not answered is left out
    tokens = prepared(tmp_path, tokenizer, chat)
    assert learned(tokens, tokenizer) == [" Eins, é.</s>", " Zwei.</s>"]
    text = load_tokenizer(str(tokenizer))._special_backend.decode(
        tokens.read(0, tokens.num_tokens).tolist(), skip_special_tokens=False
    )
    assert text == "<s>[INST] One? [/INST] Eins, é.</s>[INST] Two? [/INST] Zwei.</s>"


# In the ways of Llama 3, Qwen2.5 (a system message of its own, results of tools as the user's), Mistral and Gemma:
# (template, special tokens, end token, chat, its text by hand: what is learned stands in every second place).
CALL: list[dict[str, Any]] = [
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "", "tool_calls": [{"name": "count", "arguments": {"n": 2}}]},
    {"role": "tool", "content": "Zwei"},
    {"role": "assistant", "content": "Zwei."},
]
STYLES: dict[str, tuple[str, tuple[str, ...], str, list[dict[str, Any]], tuple[str, ...]]] = {
    "llama3": (
        "{% for message in messages %}{% set text = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
        " + message['content'] | trim + '<|eot_id|>' %}{{ bos_token + text if loop.first else text }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|end_of_text|>",
        [CHAT[0], CHAT[1] | {"content": "  One? "}, *CHAT[2:]],
        (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nOne?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            "Eins, é.<|eot_id|>",
            "<|start_header_id|>user<|end_header_id|>\n\nTwo?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            "Zwei.<|eot_id|>",
            "<|end_of_text|>",  # of the document: the answer has ended before
        ),
    ),
    "qwen": (
        "{%- if tools %}{{ raise_exception('none were given') }}{%- endif %}{%- if messages[0]['role'] != 'system' %}"
        "{{- '<|im_start|>system\nYou are Q.<|im_end|>\n' }}{%- endif %}{%- for m in messages %}"
        "{%- if m.role == 'tool' %}"
        "{{- '<|im_start|>user\n<tool_response>' + m.content + '</tool_response><|im_end|>\n' }}{%- else %}"
        "{{- '<|im_start|>' + m.role + '\n' + m.content }}{%- for call in m.tool_calls or [] %}"
        "{{- '<tool_call>' + call | tojson + '</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}"
        "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}",
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        "<|im_end|>",
        CALL,
        (
            "<|im_start|>system\nYou are Q.<|im_end|>\n<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n",
            '<tool_call>{"name": "count", "arguments": {"n": 2}}</tool_call><|im_end|>',
            "\n<|im_start|>user\n<tool_response>Zwei</tool_response><|im_end|>\n<|im_start|>assistant\n",
            "Zwei.<|im_end|>",
        ),
    ),
    "mistral": (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        "</s>",
        CHAT[1:],
        ("<s>[INST] One? [/INST]", "Eins, é.</s>", "[INST] Two? [/INST]", "Zwei.</s>"),
    ),
    "gemma": (
        "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('turns must alternate') }}{% endif %}"
        "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
        "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        [CHAT[1], CHAT[2] | {"content": " Eins, é.\n"}, *CHAT[3:]],
        (
            "<bos><start_of_turn>user\nOne?<end_of_turn>\n<start_of_turn>model\n",
            "Eins, é.<end_of_turn>",
            "\n<start_of_turn>user\nTwo?<end_of_turn>\n<start_of_turn>model\n",
            "Zwei.<end_of_turn>",
            "<eos>",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_tokens_and_mask_of_published_ways_are_those_made_by_hand(tmp_path: Path, style: str) -> None:
    template, special, end, chat, by_hand = STYLES[style]
    tokenizer = make_tokenizer(tmp_path / "tok", template, end=end, special=special)
    tokens = prepared(tmp_path, tokenizer, chat)
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    parts = [backend.encode(text, add_special_tokens=False).ids for text in by_hand]
    ids = [token for part in parts for token in part]
    assert tokens.read(0, tokens.num_tokens).tolist() == ids
    mask = [number % 2 for number, part in enumerate(parts) for _ in part]
    assert tokens.read_mask(0, tokens.num_tokens).tolist() == mask
    # Rows shorter than an answer cut it, and each of its tokens is learned in one row or the next, and nothing else is.
    windows = HeldOutWindows(tokens, 8)
    labels = windows.rows(np.arange(windows.num_rows))["labels"].reshape(-1)
    wanted = [token if flag else -1 for token, flag in zip(ids, mask, strict=True)]
    assert labels[: len(wanted)].tolist() == [*wanted[1:], -1]


def test_a_token_across_the_edge_of_an_answer_is_cut_there(tmp_path: Path) -> None:
    """As when the model answers: it is asked with one line end, and its answer begins with two."""
    tokenizer = make_tokenizer(tmp_path / "tok", CHATML, text="Eins\n\n\nZwei")
    chat = [CHAT[1], {"role": "assistant", "content": "\n\nEins"}]
    assert learned(prepared(tmp_path, tokenizer, chat), tokenizer) == ["\n\nEins<|im_end|>"]
    from tokenizers import Tokenizer

    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode("assistant\n\n\nEins")
    assert "ĊĊ" in whole.tokens  # there is such a token: without the cut it would be half an answer


def test_the_name_of_a_role_is_no_answer(tmp_path: Path) -> None:
    """A template without words that ask for an answer, in which an answer is a part of the name before it."""
    named = "{{ bos_token }}{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    tokenizer = make_tokenizer(tmp_path / "tok", named, end="</s>")
    chat = [CHAT[1], {"role": "assistant", "content": "a"}, *CHAT[3:]]
    assert learned(prepared(tmp_path, tokenizer, chat), tokenizer) == ["a", "Zwei.</s>"]


def test_the_template_agrees_with_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    tokenizer = make_tokenizer(tmp_path / "tok", INST, end="</s>")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer)
    messages = CHAT[1:]
    whole = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    tokens = prepared(tmp_path, tokenizer, messages)
    assert tokens.read(0, tokens.num_tokens).tolist() == whole["input_ids"]
    assert tokens.read_mask(0, tokens.num_tokens).tolist() == whole["assistant_masks"]


@pytest.mark.parametrize(
    ("template", "chat", "expected"),
    [
        (CHATML, CHAT[:2], ["no message of the role 'assistant'"]),
        (CHATML, [], ["list of messages"]),
        (CHATML, [{"role": "user"}], ["message 0", "content"]),
        (CHATML, [{"content": "x"}], ["message 0", "no role"]),
        (CHATML, [{"role": "assistant", "content": "x<|im_end|>"}], ["message 0", "<|im_end|>"]),
        (INST, CHAT, ["Only user and assistant!"]),
        (FORGETFUL, CHAT[1:], ["message 1", "another way"]),
        (STYLES["llama3"][0], CHAT[2:], ["message 0", "Begin the chat with another message"]),
        (CHATML.replace("assistant\n' }}", "assistant\n<think>' }}"), CHAT[1:], ["message 1", "<think>"]),
        (CHATML, [CHAT[1], CHAT[2] | {"weight": 0}], ["message 1", "weight"]),
        (CHATML, [CHAT[1], {"role": "assistant", "content": None}], ["message 1", "NoneType"]),
        ("{{ messages[0]['content'] + 1 }}", CHAT[1:], ["does not take this chat"]),
    ],
)
def test_a_chat_that_cannot_be_learned(tmp_path: Path, template: str, chat: Any, expected: list[str]) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", template)
    with pytest.raises(InputError) as error:
        prepared(tmp_path, tokenizer, CHAT[1:3], chat)
    assert all(text in str(error.value) for text in ["chats.jsonl:", *expected]), error.value
    assert not (tmp_path / "out").exists()


def test_a_template_is_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chat template"):
        PrepareConfig(input=("x",), tokenizer="train:300", chat_key="messages")
    tokenizer = make_tokenizer(tmp_path / "tok", "{% if %}")
    with pytest.raises(InputError, match="line 1"):
        load_template(str(tokenizer)).document(CHAT, "here")
    (tokenizer / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="no chat template"):
        load_template(str(tokenizer))
    with pytest.raises(InputError, match="no such file or folder"):
        load_template(str(tmp_path / "nothing"))


def test_another_template_is_another_job(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", CHATML)
    prepared(tmp_path, tokenizer, CHAT)
    prepared(tmp_path, tokenizer, CHAT)  # the same job
    (tokenizer / "chat_template.jinja").write_text(CHATML.replace("assistant", "Assistant"))
    with pytest.raises(InputError, match="another chat template"):
        prepared(tmp_path, tokenizer, CHAT)


def test_text_begins_with_what_the_tokenizer_puts_there_and_ends_once(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(tmp_path / "tok", CHATML, end="</s>", bos=True)
    (tmp_path / "a.txt").write_text("One </s> Two")  # spelled out: characters, not an end
    prepare(
        PrepareConfig(input=(str(tmp_path / "a.txt"),), tokenizer=str(tokenizer), output=str(tmp_path / "text")), False
    )
    tokens = open_token_set(tmp_path / "text" / "train")
    ids = tokens.read(0, tokens.num_tokens)
    loaded = load_tokenizer(str(tokenizer))
    assert ids[0] == loaded.begin_id is not None
    assert (ids == loaded.end_id).sum() == 1
    assert ids[-1] == loaded.end_id
    with pytest.raises(InputError, match="end token"):
        loaded.begun(ids)
