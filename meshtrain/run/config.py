"""`RunConfig`: a whole run as one frozen value. It says what is computed; the layout file says where and when.

The part that changes numbers is declared here (`mathematics`), so that a resume can be refused with a list of what
differs, and everything else may change between two starts of the same run.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshtrain.errors import InputError
from meshtrain.io.checkpoint import CheckpointConfig
from meshtrain.io.config import DataConfig
from meshtrain.io.home import expanded
from meshtrain.model.config import ModelConfig
from meshtrain.run import config_file, origin, schema
from meshtrain.run.arguments import Arguments
from meshtrain.run.processes import ThisProcess
from meshtrain.run.watch.budget import WatchConfig
from meshtrain.step.optimizer import OptimizerConfig
from meshtrain.step.precision import Precision

# What changes numbers: these sections and keys, less the dotted keys of NOT_MATHEMATICS. A key that is added to one of
# these sections changes numbers until it is declared not to.
MATHEMATICS = ("model", "data", "optimizer", "precision", "seed", "global_batch", "z_loss", "init")
# Where the data lies and how it is made may change: what counts is its content, which `contents` adds.
NOT_MATHEMATICS = ("data.paths", "data.prepare", "data.verify")

# Beyond any run: of virtual devices, for each of which JAX makes threads; of rows, which the loader counts one by one.
MOST = {"cpu_devices": 4096, "global_batch": 2**26}
USUAL_LEARNING_RATES = (1e-7, 0.5)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run. The first group changes the numbers; the second may differ from one start to the next."""

    model: ModelConfig
    data: DataConfig
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    precision: Precision = field(default_factory=Precision)
    # Of the initial weights, the order of the data and dropout.
    seed: int = 0
    # Sequences of one step, over all devices and microbatches.
    global_batch: int
    # Weight of the squared log-sum-exp of the logits in the loss; 0: none.
    z_loss: float = 0.0
    # A Hugging Face folder, or a run or checkpoint, whose weights the first start takes; everything else starts anew.
    # What `model` leaves out is taken from there.
    init: str | None = None

    # Steps of the whole run, all its starts together.
    steps: int
    # The folder that everything of the run lives in.
    workdir: str
    # The layout file that holds without --layout.
    layout: str
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    # When a run that does not move any more is ended.
    watch: WatchConfig = field(default_factory=WatchConfig)
    # Steps between evaluations on the held-out windows; 0: only after the last step. Without a held-out set: none.
    eval_every: int = 0
    # The most batches of one evaluation; None: the whole held-out set.
    eval_batches: int | None = None
    # Steps between two lines of progress where there is no terminal.
    log_every: int = 10
    # Whether TensorBoard files are written.
    tensorboard: bool = True
    # Steps to write an XLA trace of, START:STOP (both are traced), into the run's folder; None: no trace.
    profile: str | None = None
    # That many steps in a row that are not finite end the run.
    max_skipped: int = 10
    # Virtual devices of the CPU: in a file, where there is no GPU and the mesh has a -1; as a flag, in any case.
    cpu_devices: int | None = None
    # The folder of compiled programs; None: $MESHTRAIN_CACHE, $JAX_COMPILATION_CACHE_DIR or the user's cache folder;
    # "off": none is kept.
    compilation_cache: str | None = None
    # FLOP/s of one device in the compute dtype, for the utilisation; None: from the kind of GPU.
    peak_flops: float | None = None
    # The cluster's file, whose flags a run on GPUs gives to the compiler, for example configs/clusters/h100_roce.py.
    cluster: str | None = None

    def __post_init__(self) -> None:
        for name in ("global_batch", "steps", "log_every", "max_skipped", "cpu_devices", "eval_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} must be at least 1; {name}=1 would work.")
        for name in ("seed", "eval_every", "z_loss"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name}: {getattr(self, name)} must be at least 0 and finite; {name}=0 would work.")
        if self.seed >= 2**32:
            raise InputError(f"seed: {self.seed} must be below 2**32; seed={self.seed % 2**32} would work.")
        for name, most in MOST.items():
            if (getattr(self, name) or 0) > most:
                raise InputError(f"{name}: {getattr(self, name)} is more than can be; at most {most} would work.")
        if self.peak_flops is not None and not self.peak_flops > 0:
            raise InputError(f"peak_flops: {self.peak_flops} must be above 0, for example 989e12.")
        for key, value in _flat(as_json(self)).items():
            if isinstance(value, float) and not math.isfinite(value) and not key.startswith("watch."):
                raise InputError(f"{key}: {value} is no number to compute with; name a finite one.")
        if not self.workdir:
            raise InputError("workdir: name the run's folder, for example workdir=runs/mine.")
        if self.data.length > self.model.max_length:
            raise InputError(
                f"data.length: {self.data.length} tokens are more than model.max_length={self.model.max_length};"
                f" data.length={self.model.max_length} would work."
            )
        if self.checkpoint.keep_best and (not self.eval_every or self.checkpoint.every % self.eval_every):
            raise InputError(
                f"checkpoint.keep_best: the steps that are saved (checkpoint.every={self.checkpoint.every}) are not all"
                f" evaluated (eval_every={self.eval_every}); eval_every={self.checkpoint.every} would work."
            )
        _ = self.profile_steps

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and last step of the trace."""
        if self.profile is None:
            return None
        first, _, last = self.profile.partition(":")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
            raise InputError(f"profile: {self.profile!r} is not START:STOP with 1 <= START <= STOP, for example 10:12.")
        return int(first), int(last)


@dataclass(frozen=True)
class Request:
    """What was asked for: the run, the layout's dict (not yet parsed), and which keys came from flags."""

    config: RunConfig
    layout: dict[str, Any]
    layout_name: str
    layout_doc: str
    flags: frozenset[str]
    warnings: tuple[str, ...]
    process: ThisProcess = field(default_factory=ThisProcess)


def load(arguments: Arguments, flag: str = "--layout") -> Request:
    """The run and the layout that the command line asks for. InputError names the key, the value and a way out.

    flag: what named the layout's file, for errors.
    """
    if arguments.config is None:
        raise InputError("--config: name a run's file, for example --config configs/runs/quickstart.py.")
    file = config_file.read(arguments.config, "--config")
    values = config_file.override(file.values, arguments.overrides["config"], "config")
    config = schema.build(RunConfig, origin.complete(values), "config")
    origin.check(config.init, config.model)
    if arguments.layout is not None:
        layout = config_file.read(arguments.layout, flag)
    else:
        beside = file.root / config.layout  # a run's own layout also counts from the folder that holds `configs/`
        there = expanded(config.layout, "config.layout").exists()
        path = config.layout if there or not beside.exists() else str(beside)
        layout = config_file.read(path, "config.layout")
    flags = {key: schema.literal(text) for key, text in arguments.overrides["layout"].items()}
    return Request(
        config=config,
        layout=_whole_numbers(config_file.override(layout.values, flags, "layout")),
        layout_name=layout.path.stem,
        layout_doc=layout.doc,
        flags=frozenset(arguments.overrides["config"]),
        warnings=_unusual(config),
    )


def mathematics(config: RunConfig, contents: Sequence[str] = ()) -> dict[str, Any]:
    """What changes the run's numbers, as plain JSON values. `contents`: a fingerprint of each data path."""
    whole = as_json(config)
    found = {key: whole[key] for key in MATHEMATICS}
    for dotted in NOT_MATHEMATICS:
        section, key = dotted.split(".")
        found[section] = {name: value for name, value in found[section].items() if name != key}
    found["data"]["contents"] = list(contents)
    schedule = found["optimizer"]["schedule"]
    schedule["steps"] = schedule["steps"] or config.steps  # the decay's end counts, not how far this start goes
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """`key: old -> new` for each difference. A key that one side does not know counts as off there (None, False, 0)."""
    before, after = _flat(old), _flat(new)
    lines = []
    for key in sorted(before.keys() | after.keys()):
        a, b = before.get(key), after.get(key)
        if a != b and not ((key not in before or key not in after) and not a and not b):
            lines.append(f"{key}: {a!r} -> {b!r}")
    return lines


def as_json(config: RunConfig) -> dict[str, Any]:
    """The resolved config as plain JSON values."""
    return dict(json.loads(json.dumps(dataclasses.asdict(config))))


def asked(request: Request) -> dict[str, Any]:
    """Run and layout as dotted keys: what all processes of a run must have been asked for alike."""
    layout = json.loads(json.dumps(request.layout, default=str))
    return _flat(as_json(request.config), "config.") | _flat(layout, "layout.")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _whole_numbers(layout: dict[str, Any]) -> dict[str, Any]:
    """Axis sizes and counts written as 4.0 are 4, in every section."""

    def whole(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: whole(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(whole, value))
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return {key: whole(value) for key, value in layout.items()}


def _unusual(config: RunConfig) -> tuple[str, ...]:
    low, high = USUAL_LEARNING_RATES
    rate, traced = config.optimizer.learning_rate, config.profile_steps
    found = []
    if not low <= rate <= high:
        found.append(
            f"config.optimizer.learning_rate={rate:g} is far outside of what usually trains ({low:g} to {high:g})"
        )
    if traced is not None and traced[0] > config.steps:
        found.append(f"config.profile={config.profile} begins behind the last step (config.steps={config.steps})")
    return tuple(found)
