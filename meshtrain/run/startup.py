"""The parts of a run's start: placement, data, the compiled step, the first state. The loop says in which order."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from meshtrain.cost.state import state_bytes
from meshtrain.errors import InputError
from meshtrain.io import checkpoint, hf
from meshtrain.io.checkpoint_folder import Saved
from meshtrain.io.home import expanded
from meshtrain.io.rows import Source, batch_fields
from meshtrain.io.sources import ensure_prepared, open_held_out, open_train
from meshtrain.io.together import ALONE, Together
from meshtrain.io.windows import HeldOutWindows
from meshtrain.layout import Layout, Placement, place
from meshtrain.layout.words import plural, size_text, sizes_text
from meshtrain.run import origin
from meshtrain.run.config import Request, RunConfig
from meshtrain.run.progress import Progress
from meshtrain.step import StepConfig, TrainState, initial_state
from meshtrain.step.lower import lower_step
from meshtrain.step.state import abstract_state, make_device_order

PREPARING = 86400  # seconds that the other processes wait while process 0 prepares data


@dataclass(frozen=True)
class Data:
    """The training rows, the held-out rows by path, and of each training set a fingerprint and its tokenizer's."""

    train: Source
    held_out: dict[str, HeldOutWindows]
    contents: tuple[str, ...]
    tokenizers: tuple[str, ...]

    @property
    def held_out_contents(self) -> tuple[str, ...]:
        """A fingerprint of each held-out set."""
        return tuple(windows.tokens.fingerprint for windows in self.held_out.values())


def step_config(config: RunConfig) -> StepConfig:
    """What a step of this run computes."""
    return StepConfig(config.model, config.optimizer, config.precision, config.z_loss, config.seed)


def place_layout(request: Request, num_devices: int, say: Callable[[str], None]) -> Placement:
    """The layout on the devices; InputError where mesh, batch and devices do not fit each other."""
    layout = Layout.parse(request.layout, request.layout_name, request.layout_doc)
    placement = place(layout, num_devices)
    per_device = placement.check_batch(request.config.global_batch)
    mesh = sizes_text(placement.axis_sizes) or "one device"
    say(
        f"layout {layout.name}: mesh {mesh}; global batch {request.config.global_batch} = {per_device} per device x"
        f" {placement.num_shards('batch')} batch shards x {layout.accumulate} microbatches"
    )
    return placement


def check_memory(config: RunConfig, placement: Placement) -> None:
    """InputError where the state alone is more than a machine whose CPU trains can hold: the system would end the
    process without a word."""
    local = placement.mesh.local_devices
    if local[0].platform != "cpu":
        return
    needed = len(local) * state_bytes(step_config(config), placement)["optimizer"]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise InputError(
            f"weights and moments take {size_text(needed)} on {plural(len(local), 'CPU device')}, and this machine has"
            f" {size_text(memory)}. Only the CPU is used here; for GPUs pip install 'meshtrain[cuda13]' and leave"
            " config.cpu_devices out."
        )


def open_data(config: RunConfig, progress: Progress, together: Together = ALONE) -> Data:
    """The data, prepared first where the run says how. InputError where it cannot be read, by any process."""

    def prepare() -> None:
        assert config.data.prepare is not None
        if expanded(config.data.paths[0], "data.paths").exists():
            try:  # what counts is what the folder holds; that the run says something else is worth a word
                ensure_prepared(config.data)
            except InputError as error:
                progress.say(f"warning: data.prepare: {error}")
        else:
            with progress.phase(f"preparing {config.data.paths[0]} from {', '.join(config.data.prepare.input)}"):
                ensure_prepared(config.data)

    if config.data.prepare is not None:
        together.share("preparation of data", prepare, seconds=PREPARING)
    return together.agree("data", lambda: _open(config))


def _open(config: RunConfig) -> Data:
    train = open_train(config.data, vocab=config.model.vocab, seed=config.seed)
    held_out = open_held_out(config.data, vocab=config.model.vocab)
    sets = [source.tokens for source in getattr(train, "sources", (train,)) if hasattr(source, "tokens")]
    tokenizers = tuple(tokens.tokenizer_sha256 for tokens in sets)
    return Data(train, held_out, tuple(tokens.fingerprint for tokens in sets), tokenizers)


def describe_data(data: Data, config: RunConfig) -> str:
    """How much data the run reads, in rows and epochs, and how much is held out."""
    num_rows, read = data.train.num_rows, config.steps * config.global_batch
    text = f"data: rows of {config.data.length} tokens, {read:,} in {config.steps:,} steps"
    if num_rows is not None:
        text += f"; an epoch is {num_rows:,} rows, so that is {read / num_rows:.2f} epochs"
    held_out = sum(windows.num_rows for windows in data.held_out.values())
    text += f"; held out: {held_out:,} rows" if held_out else "; nothing is held out"
    if warning := origin.other_tokenizer(config.init, data.tokenizers):
        text += f"\nwarning: {warning}"
    return text


def compile_step(config: RunConfig, placement: Placement, progress: Progress) -> Callable[..., Any]:
    """The training step as an executable: traced and compiled without any array, and never compiled again."""
    fields = batch_fields(config.data.packed)
    with progress.phase("compiling the training step"):
        return lower_step(
            step_config(config), placement, config.global_batch, config.data.length, fields
        ).compile()  # fmt: skip


def first_state(
    config: RunConfig,
    specs: TrainState,
    placement: Placement,
    saved: Saved | None,
    progress: Progress,
    together: Together = ALONE,
) -> TrainState:
    """The state that training goes on from: a checkpoint's, or a new one (with another run's weights, if asked for)."""
    targets = abstract_state(specs, placement)
    if saved is not None:
        with progress.phase(f"restoring step {saved.step} from {saved.folder}", announce=False):
            state = make_device_order(specs, placement)(checkpoint.restore(saved, specs, targets))
            if int(state.step) != saved.step or saved.record.get("rows") != saved.step * config.global_batch:
                raise InputError(
                    f"{saved.folder}: the folder's name, the counter in it ({int(state.step)}) and the position in the"
                    f" data ({saved.record.get('rows')} rows) do not agree; remove it to go on from an older one."
                )
            return state
    params = None
    if config.init is not None and hf.is_folder(config.init):
        with progress.phase(f"weights from {config.init}"):
            params = hf.read_params(hf.open_folder(config.init), specs.params, targets.params)
            params = make_device_order(specs.params, placement)(params)
    elif config.init is not None:
        source = checkpoint.find(expanded(config.init, "config.init"), progress.say, together)
        with progress.phase(f"weights of step {source.step} from {source.folder}", announce=False):
            params = checkpoint.restore_params(source, specs.params, targets.params)
            params = make_device_order(specs.params, placement)(params)
        progress.say("optimizer state, step and position in the data start anew")
    with progress.phase("initial state", announce=False):
        return jax.block_until_ready(initial_state(config.model, config.optimizer, config.seed, placement, params))


def num_parameters(specs: TrainState) -> int:
    """Numbers of all weights, without padding."""
    return sum(math.prod(spec.shape) for spec in jax.tree.leaves(specs.params))
