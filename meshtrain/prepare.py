"""Makes the token sets that a run trains on, of text, JSON lines or Parquet.

    python -m meshtrain.prepare --input 'books/**/*.txt' --tokenizer train:32000 --output corpora/books
    python -m meshtrain.prepare --input python-stdlib --tokenizer byte --output corpora/stdlib --held-out 0.02

Exit codes: 0 done, or already there from the same job; 2 the input is wrong; 130 interrupted: nothing is left behind.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence

from meshtrain.errors import Exit, MeshtrainError
from meshtrain.io.config import PrepareConfig
from meshtrain.io.corpus import STDLIB
from meshtrain.io.preparation import Prepared, prepare
from meshtrain.run.flags import exit_code
from meshtrain.run.speech import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the sets; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing behind either
    try:
        return exit_code(_prepare, arguments)
    except KeyboardInterrupt:
        say("interrupted: nothing half-made was left behind", error=True)
        return Exit.INTERRUPTED


def _prepare(arguments: Sequence[str]) -> int:
    config, progress = _parse(arguments)
    began = time.monotonic()
    prepared = prepare(config, progress)
    _report(prepared, time.monotonic() - began)
    return Exit.DONE


def _parse(arguments: Sequence[str]) -> tuple[PrepareConfig, bool]:
    parser = argparse.ArgumentParser(
        prog="python -m meshtrain.prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--input", nargs="+", action="extend", required=True, metavar="GLOB",
        help=f"files or patterns: .jsonl, .parquet, anything else is text, one document a file (each may be .gz but"
        f" Parquet); or {STDLIB!r}, the sources of Python's standard library",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", required=True, metavar="byte|FILE|train:SIZE",
        help="bytes, a Hugging Face tokenizer.json, or a byte-level BPE of SIZE entries learned from the input",
    )  # fmt: skip
    parser.add_argument("--output", required=True, metavar="DIR", help="the folder to make; never overwritten")
    parser.add_argument(
        "--text-key", default="text", metavar="KEY", help="where JSON lines and Parquet hold the text (%(default)s)"
    )
    parser.add_argument(
        "--chat-key", default="", metavar="KEY",
        help="JSON lines are chats: where they hold the messages, which go through the tokenizer's chat template; only"
        " the assistant's answers are learned",
    )  # fmt: skip
    parser.add_argument(
        "--held-out", type=float, default=PrepareConfig.held_out, metavar="SHARE|NUMBER",
        help="documents kept apart for evaluation: below 1 their share, from 1 on their number (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--end-token", default="", metavar="TOKEN", help="the end-of-document token of FILE, if it does not tell"
    )
    parser.add_argument(
        "--shard-tokens", type=int, default=PrepareConfig.shard_tokens, metavar="N",
        help="tokens of a shard (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--no-progress", action="store_true", help="no progress bars (there are none without a terminal)"
    )
    given = vars(parser.parse_args(arguments))
    progress = not given.pop("no_progress")
    try:
        return PrepareConfig(**given | {"input": tuple(given["input"])}), progress
    except MeshtrainError as error:
        parser.error(str(error))


def _report(prepared: Prepared, seconds: float) -> None:
    verb = "wrote" if prepared.made else "already there, from the same job:"
    say(f"{verb} {prepared.folder} in {seconds:.1f} s, vocabulary {prepared.vocab_size}")
    for name, counts in prepared.sets.items():
        say(
            f"  {name}: {counts['num_documents']:,} documents, {counts['num_tokens']:,} tokens,"
            f" {counts['num_bytes']:,} bytes of text ({counts['num_bytes'] / counts['num_tokens']:.2f} bytes a token)"
        )
    if "held_out" not in prepared.sets:
        say("  nothing is held out: a run on this corpus has nothing to evaluate on")


if __name__ == "__main__":
    sys.exit(main())
