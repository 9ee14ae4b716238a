"""Hugging Face folders in and out.

    python -m meshtrain.convert import DIR --to FOLDER [--layout FILE]
    python -m meshtrain.convert export RUN --to DIR [--step N] [--dtype bf16] [--shard-size 5GB]

import   a Hugging Face folder to weights that a run starts from (--config.init=FOLDER; init also takes DIR itself)
  --layout FILE     cut the weights over the devices of this layout while they are read (default: one device)
export   the newest checkpoint of a run's folder, or an imported folder, to a Hugging Face folder
  --step N          another checkpoint
  --dtype NAME      f32, bf16 or f16 (default: that of the folder the run began with, else what the run computes in)
  --shard-size N    the most bytes of one file (default 5GB)
  --cluster FILE --gpus N   also say how vLLM should serve it there

Nothing half-made is left behind. Exit codes: 0 done, 2 bad input, 4 a folder that cannot be read or written.
"""

import signal
import sys
from collections.abc import Sequence

from meshtrain.errors import Exit, InputError
from meshtrain.run.flags import NUMBER, TEXT, exit_code, take
from meshtrain.run.speech import say

FLAGS = {
    "import": dict(to=TEXT, layout=TEXT),
    "export": dict(to=TEXT, step=TEXT, dtype=TEXT, shard_size=TEXT, cluster=TEXT, gpus=NUMBER),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Makes what is asked for; returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leaves nothing behind either
    try:
        return exit_code(convert, argv)
    except KeyboardInterrupt:
        say("interrupted: nothing half-made was left behind", error=True)
        return Exit.INTERRUPTED


def convert(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    if not argv or {"--help", "-h"} & set(argv):
        print(__doc__)
        return Exit.DONE if argv else Exit.BAD_INPUT
    action, *rest = argv
    if action not in FLAGS:
        raise InputError(
            f"{action}: expected import or export, as in python -m meshtrain.convert import DIR --to FOLDER."
        )
    flags, folders, rest = take(rest, FLAGS[action])
    if rest:
        raise InputError(
            f"{rest[0]}: {action} has no such flag; it has --{', --'.join(FLAGS[action])}.".replace("_", "-")
        )
    if len(folders) != 1 or "to" not in flags:
        raise InputError(f"{action}: name one folder to read and, with --to, one to make.")
    from meshtrain.run import convert as work

    if action == "import":
        work.import_folder(folders[0], flags["to"], flags.get("layout"), _tell)
        return Exit.DONE
    if ("cluster" in flags) != ("gpus" in flags):
        raise InputError("--cluster, --gpus: name both, for example --cluster configs/clusters/h100_roce.py --gpus 8.")
    serve_on = (flags["cluster"], flags["gpus"]) if "gpus" in flags else None
    step, dtype, shard_size = work.parse_step(flags.get("step")), flags.get("dtype"), flags.get("shard_size")
    work.export_folder(folders[0], flags["to"], step, dtype, shard_size, _tell, serve_on)
    return Exit.DONE


def _tell(text: str) -> None:
    say(text)


if __name__ == "__main__":
    sys.exit(main())
