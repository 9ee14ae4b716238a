"""Rotary positions in config.json, in both spellings, and windows of attention: which layers have one.

    "rope_theta": 1e4, "rope_scaling": {"type" or "rope_type": ..., "factor": ...}      transformers before 5
    "rope_parameters": {"rope_theta": 1e4, "rope_type": ..., "factor": ...}             from 5 on

A kind of scaling or a key of one that is not known is an error: read as something else, the model would still talk, but
worse. Meanings of missing keys are those of transformers' `modeling_rope_utils`.
"""

from dataclasses import dataclass
from typing import Any

from meshtrain.errors import InputError
from meshtrain.io.hf.fields import Group, Reader, Values, all_typed
from meshtrain.model import ModelConfig, RopeScaling

# Kind -> the file's keys and the fields of RopeScaling that they are.
_LENGTH = {"original_max_position_embeddings": "original_length"}
KINDS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        **_LENGTH,
    },
    "yarn": {
        "factor": "factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
        "attention_factor": "attention_factor",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
        **_LENGTH,
    },
}
_GENERAL = ("rope_theta", "rope_type", "type", "partial_rotary_factor")
_NEEDED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor"), "yarn": ()}
_SPELLINGS = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Rope(Group):
    """Base and scaling of the rotation. `theta`: what a missing rope_theta means."""

    theta: float = 10000.0
    keys: tuple[str, ...] = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")

    def read(self, given: Reader) -> Values:
        values = {key: given.take(key, None) for key in self.keys}
        spelled = [key for key in _SPELLINGS if values[key]]
        key = spelled[0] if spelled else "rope_scaling"
        said: Any = values[key] or {}
        if len(spelled) == 2 and values["rope_scaling"] != said:
            raise given.error("rope_scaling", "says something else than rope_parameters; keep one of them.")
        if not isinstance(said, dict) or any(isinstance(value, dict) for value in said.values()):
            raise given.error(key, "expected one flat set of keys; a rotation for each kind of layer cannot be read.")
        kind = said.get("rope_type", said.get("type", "default"))
        if not isinstance(kind, str) or kind not in KINDS or said.get("type", kind) != kind:
            raise given.error(key, f"the kind {kind!r} cannot be read; {', '.join(KINDS)} can.")
        unknown = [name for name in said if name not in KINDS[kind] and name not in _GENERAL]
        if unknown:
            raise given.error(
                key, f"{kind} scaling has no key {unknown[0]!r}; it has {', '.join(KINDS[kind]) or 'none'}."
            )
        for where in (said, values):
            if where.get("partial_rotary_factor") not in (None, 1, 1.0):
                raise given.error(key, "partial_rotary_factor: a rotation of a part of each head cannot be read.")
        theta = said.get("rope_theta", values["rope_theta"])
        if theta is not None and (isinstance(theta, bool) or not isinstance(theta, int | float)):
            raise given.error("rope_theta" if "rope_theta" not in said else key, f"rope_theta={theta!r} is no number.")
        scaling = None if kind == "default" else self._scaling(given, key, kind, said)
        return {"rope_theta": float(self.theta if theta is None else theta), "rope_scaling": scaling}

    def _scaling(self, given: Reader, key: str, kind: str, said: dict[str, Any]) -> RopeScaling:
        for name in _NEEDED[kind]:
            if said.get(name) is None:
                raise given.error(key, f"{kind} scaling needs {name!r}.")
        fields = {field: said[name] for name, field in KINDS[kind].items() if said.get(name) is not None}
        longest = given.values.get("max_position_embeddings")
        if "original_length" in KINDS[kind].values():
            fields.setdefault("original_length", longest)
        try:
            if "factor" not in fields:
                fields["factor"] = longest / fields["original_length"]  # as DeepSeek's files leave it out
            fields = all_typed(fields, RopeScaling)
            return RopeScaling(kind, **fields)
        except (InputError, TypeError, ZeroDivisionError) as error:
            raise given.error(key, str(error)) from None

    def write(self, model: ModelConfig) -> Values:
        scaling = model.rope_scaling
        if scaling is None:
            return {"rope_theta": model.rope_theta, "rope_scaling": None}
        said = {name: getattr(scaling, field) for name, field in KINDS[scaling.kind].items()}
        said = {name: value for name, value in said.items() if value is not None}
        return {"rope_theta": model.rope_theta, "rope_scaling": {"rope_type": scaling.kind, **said}}


@dataclass(frozen=True)
class EveryWindow(Group):
    """sliding_window: the window of every layer, or null for none. `default`: what it means where it is missing."""

    default: int | None
    keys: tuple[str, ...] = ("sliding_window",)

    def read(self, given: Reader) -> Values:
        return {"window": given.take("sliding_window", self.default), "window_layers": (True,)}

    def write(self, model: ModelConfig) -> Values:
        return {"sliding_window": model.window}


@dataclass(frozen=True)
class SomeWindow(Group):
    """The window of the layers that have one: said by layer_types, or else by the family's own rule.

    `switch`: whether use_sliding_window must be true, and layers count from max_window_layers on (Qwen); without it
    every second layer from the first on has the window (Gemma 2).
    """

    switch: bool
    keys: tuple[str, ...] = ("sliding_window", "layer_types", "use_sliding_window", "max_window_layers")

    def read(self, given: Reader) -> Values:
        window = given.take("sliding_window", 4096)
        num_layers = given.values.get("num_hidden_layers", 0)
        first = given.take("max_window_layers", 28) if self.switch else 0
        if self.switch and not given.take("use_sliding_window", False):
            window = None
        kinds = given.take("layer_types", None)
        if kinds is None:
            layers = tuple(i >= first if self.switch else i % 2 == 0 for i in range(num_layers))
        else:
            names = {"full_attention": False, "sliding_attention": True}
            if len(kinds) != num_layers or set(kinds) - set(names):
                raise given.error("layer_types", f"expected {num_layers} of {', '.join(names)}.")
            layers = tuple(names[kind] for kind in kinds)
        if window is None or not any(layers):
            return {"window": None, "window_layers": (True,)}
        return {"window": window, "window_layers": _period(layers)}

    def write(self, model: ModelConfig) -> Values:
        layers = tuple(model.layer_window(layer) is not None for layer in range(model.num_layers))
        kinds = ["sliding_attention" if windowed else "full_attention" for windowed in layers]
        if not self.switch:
            return {"sliding_window": model.window, "layer_types": kinds}
        first = layers.index(True) if any(layers) else model.num_layers
        said: Values = {
            "use_sliding_window": model.window is not None,
            "sliding_window": model.window,
            "max_window_layers": first,
        }
        return said if all(layers[first:]) else said | {"layer_types": kinds}


def _period(layers: tuple[bool, ...]) -> tuple[bool, ...]:
    """The shortest pattern that repeats to `layers`."""
    lengths = (n for n in range(1, len(layers) + 1) if len(layers) % n == 0)
    return next(layers[:n] for n in lengths if layers[:n] * (len(layers) // n) == layers)
