"""Chats as documents: a tokenizer's own chat template makes the text, and only what the assistant says is learned.

Where an answer lies in the text is found by rendering the chat up to it, with the words that ask for an answer, and
with it: both are the beginning of the whole text. Where a template writes an answer in another way once more turns
follow (Qwen3 leaves out its thoughts) or has no words that ask for one, the answer's own words must stand there, with
the token that ends them. Where they do not, it is an error: a wrong mask would be worse. What comes after the last
answer teaches nothing and is left out. Templates are Jinja, run in its sandbox.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from meshtrain.errors import InputError, nearest
from meshtrain.io.home import expanded

ANSWERS = "assistant"  # the role whose messages are learned
_PROBE = "Antwort"  # stands in an answer's place to see what a template writes before it
Span = tuple[int, int]


@dataclass(frozen=True)
class ChatTemplate:
    """A template's source and the special tokens that it may name (bos_token, ...)."""

    source: str
    tokens: tuple[tuple[str, str], ...]
    special: frozenset[str]

    @property
    def sha256(self) -> str:
        """Identifies template and tokens."""
        return hashlib.sha256(json.dumps([self.source, self.tokens]).encode()).hexdigest()

    def document(self, messages: Any, where: str) -> tuple[str, tuple[Span, ...]]:
        """The text of a chat up to the end of its last answer, and the span of each answer in it, in characters.

        InputError, with `where`, for messages that are not a chat, that hold no answer or that spell a special token,
        and for a template that cannot be followed.
        """
        self._check(messages, where)
        whole = self._render(messages, where, prompt=False)
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != ANSWERS:
                continue
            start = self._start(messages, whole, where, number)
            upto = self._render(messages[: number + 1], where, prompt=False).rstrip()
            stop = len(upto) if whole.startswith(upto) else self._stop(message["content"].strip(), whole, start)
            if stop <= start:
                raise InputError(
                    f"{where}: message {number}: the chat template writes this answer in another way when more messages"
                    " follow, so that it cannot be told which tokens are the answer. End the chat with this message."
                )
            spans.append((start, stop))
        if not spans:
            raise InputError(f"{where}: no message of the role {ANSWERS!r}: there is nothing to learn from this chat.")
        return whole[: spans[-1][1]], tuple(spans)

    def _start(self, messages: Sequence[Mapping[str, Any]], whole: str, where: str, number: int) -> int:
        """Where in the whole text the answer begins that is the message of this number."""
        before = messages[:number]
        asked, plain = (self._render(before, where, prompt) for prompt in (True, False))
        if asked != plain:
            if whole.startswith(asked):
                return len(asked)
            raise InputError(
                f"{where}: message {number}: the chat template asks for this answer with {asked[-60:]!r}, and that is"
                " not how the text goes on, so that it cannot be told which tokens are the answer."
                + ("" if before else " Begin the chat with another message.")
            )
        # No words that ask for an answer: what the template writes before the answer's own words is no answer either.
        probe = self._render([*before, {**messages[number], "content": _PROBE}], where, prompt=False)
        begun, found, _ = probe.partition(_PROBE)
        if not found or not begun.startswith(plain) or not whole.startswith(begun.rstrip()):
            raise InputError(
                f"{where}: message {number}: the chat template writes what comes before this answer in another way when"
                " the answer follows, so that it cannot be told which tokens are the answer."
            )
        return len(begun) if begun[len(plain) :].strip() else len(plain)

    def _stop(self, content: str, whole: str, start: int) -> int:
        """Where an answer of these words that begins at `start` ends, with its end token; `start` if there is none."""
        at = whole.find(content, start) if content else -1
        if at < 0 or whole[start:at].strip():
            return start
        stop = at + len(content)
        return stop + max((len(token) for token in self.special if whole.startswith(token, stop)), default=0)

    def _check(self, messages: Any, where: str) -> None:
        if not isinstance(messages, list) or not messages:
            raise InputError(f"{where}: a chat is a list of messages, each with a role and a content.")
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise InputError(f"{where}: message {number} has no role.")
            content = message.get("content")
            if not isinstance(content, str):
                raise InputError(f"{where}: message {number}: its content is {type(content).__name__}, not a text.")
            if message.get("weight", 1) != 1 or message.get("train", True) is not True:
                raise InputError(
                    f"{where}: message {number} says that it is not to be learned (weight, train), and every answer is"
                    " learned here. Remove the key, or the chat."
                )
            spelled = next((token for token in self.special if token in content), None)
            if spelled is not None:
                raise InputError(
                    f"{where}: message {number} spells the special token {spelled!r}, which would end or forge a turn."
                    " Remove it there."
                )

    def _render(self, messages: Sequence[Mapping[str, Any]], where: str, prompt: bool) -> str:
        import jinja2

        try:
            return str(
                self._template.render(
                    messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **dict(self.tokens)
                )
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            if not messages:
                return ""  # a template that needs a first message
            raise InputError(f"{where}: the chat template does not take this chat: {error}") from None

    @cached_property
    def _template(self) -> Any:
        from jinja2 import TemplateSyntaxError, ext, sandbox

        class Generation(ext.Extension):
            """The block by which some templates mark answers: its text is what counts here."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        def refuse(message: str) -> None:
            from jinja2 import TemplateError

            raise TemplateError(message)

        def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
            return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = refuse
        try:
            return environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise InputError(f"the chat template is not one that can be read: line {error.lineno}: {error}") from None


def load_template(tokenizer: str) -> ChatTemplate:
    """The chat template beside a tokenizer.json; InputError where there is none."""
    path = expanded(tokenizer)
    if not path.exists():
        raise InputError(f"--tokenizer {tokenizer}: there is no such file or folder.")
    folder = path if path.is_dir() else path.parent
    config = _json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source: Any = config.get("chat_template")
    if file.exists():
        try:
            source = file.read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: cannot be read: {error}.") from None
    elif isinstance(source, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        raise InputError(
            f"--tokenizer {tokenizer}: no chat template: neither {file.name} nor chat_template in tokenizer_config.json"
            f" of {folder}."
        )
    named_tokens = {key: _text(value) for key, value in config.items() if key.endswith("_token")}
    added = _json(folder / "tokenizer.json").get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise InputError(f"{folder / 'tokenizer.json'}: added_tokens: expected a list of tokens.")
    special = frozenset(filter(None, (_text(token) for token in added if token.get("special"))))
    return ChatTemplate(source, tuple((key, text) for key, text in named_tokens.items() if text), special)


def chat_of(record: Mapping[str, Any], key: str, where: str) -> Any:
    """The messages of a record; InputError where it has none."""
    if key not in record:
        raise InputError(
            f"{where}: no key {key!r} (keys: {', '.join(record) or 'none'}).{nearest(key, record)} --chat-key names the"
            " one that holds the messages."
        )
    return record[key]


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(token: Any) -> str:
    """A special token in tokenizer_config.json: a text, or a text with settings."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
