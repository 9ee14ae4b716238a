"""Proves that layouts compute what one device computes, by running the real training step on a small model.

    python -m meshtrain.prove --config configs/runs/quickstart.py configs/layouts/zero3.py my/own_layout.py

LAYOUT.py ...    the layouts to prove, anywhere on disk (default: the run's own)
--config FILE    the run whose model (shrunk), optimizer and loss are used, with dotted overrides as in the trainer
--against FILE   another layout as the reference (default: one device)
--steps N        training steps (default 3)
--devices N      virtual CPU devices (default 8, or more where a mesh has more than 3 axes)
--gpus           the layouts run on this machine's GPUs (all, or --devices of them), one device is still the CPU

Exit codes: 0 all are equal, 1 one differs, 2 one is refused or the input is wrong.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from meshtrain.errors import InputError
from meshtrain.run.flags import NUMBER, SWITCH, TEXT, check_names, exit_code, take

FLAGS = dict(against=TEXT, steps=NUMBER, devices=NUMBER, gpus=SWITCH)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table and what is wrong; returns the exit code."""
    return exit_code(prove_all, argv)


def prove_all(argv: Sequence[str]) -> int:
    """The door's work; MeshtrainError for what the user can mend."""
    from meshtrain.run.arguments import parse

    flags, files, rest = take(argv, FLAGS)
    check_names(rest, FLAGS)
    arguments = parse(rest)
    if arguments.help:
        print(__doc__)
        return 0
    from meshtrain.run import proof
    from meshtrain.run.config import load
    from meshtrain.run.distributed import set_up, set_up_gpus

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    requests = [load(replace(arguments, layout=file)) for file in files] or [load(arguments)]
    against = load(replace(arguments, layout=flags["against"]), "--against") if "against" in flags else None
    first, asked = requests[0], [*requests, *([against] if against else [])]
    config, num_devices, on_gpus = first.config, flags.get("devices"), "gpus" in flags
    if on_gpus:
        num_devices = set_up_gpus(first, num_devices, say)
    else:
        wanted = num_devices or proof.devices_needed(request.layout for request in asked)
        config = replace(config, cpu_devices=wanted)
        set_up(replace(first, config=config, flags=first.flags | {"cpu_devices"}), say)

    names = [request.layout_name for request in requests]
    names = [name if names.count(name) == 1 else file for name, file in zip(names, files or names, strict=True)]
    layouts = [proof.Declared(name, request.layout) for name, request in zip(names, requests, strict=True)]
    reference = proof.Declared(against.layout_name, against.layout) if against else None
    made, placed = proof.prepare(config, layouts, reference, num_devices, flags.get("steps", 3), on_gpus)
    print(proof.preface(made), flush=True)
    verdicts = []
    for declared, place, findings in placed:
        verdicts.append(proof.prove(made, declared, place, findings))
        say(f"  {declared.name}: {verdicts[-1].status} ({verdicts[-1].seconds:.1f} s)")
    print("", proof.table(verdicts), "", sep="\n")
    for verdict in verdicts:
        if verdict.status != "equal":
            print(proof.details(verdict), end="\n\n")
    statuses = {verdict.status for verdict in verdicts}
    return 1 if statuses & {"DIFFERS", "CRASHED"} else InputError.exit_code if "refused" in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
