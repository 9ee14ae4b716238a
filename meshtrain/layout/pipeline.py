"""`Pipeline`: the section of a layout that cuts the model into pieces and says when each piece works.

The model's layers are cut into repeats x stages pieces, in order: piece k is chunk k // stages of stage k % stages. On
the devices the stack of layers lies stage by stage, each piece filled up with zeros to the longest one's length; a
checkpoint holds plain [layers].
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshtrain.errors import InputError, known_keys, one_of
from meshtrain.layout.words import plural

GATHERS = ("step", "pass")
KEEPS = ("input", "residuals")
NO_LAYER = -1  # the number of a slot that holds no layer


@dataclass(frozen=True)
class Pipeline:
    """schedule: its name, or a CSV file. microbatches: into how many the batch of a step is cut.

    repeats: pieces per stage (chunks, virtual stages). layers: how many layers each piece has, first piece first; None
    deals them out evenly, where the pieces at the two ends, which also have the embedding and the output, get one less
    first. gather: when weights that ZeRO stores in parts are made whole: once a "step" (memory of a stage's weights and
    float32 gradients), or in every "pass" of a piece, forward and backward (traffic for each microbatch). keep: what of
    a piece waits for its backward pass: its "input", and all of it is computed again, or the "residuals" that `remat`
    leaves of its layers, and nothing else is.
    """

    schedule: str = "1f1b"
    microbatches: int = 1
    repeats: int = 1
    layers: tuple[int, ...] | None = None
    gather: str = "step"
    keep: str = "input"

    @classmethod
    def parse(cls, value: Any, key: str = "pipeline") -> "Pipeline | None":
        """The section, or None; InputError for the first key or value that is wrong."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InputError(
                f"{key}: expected a dict, such as {key}=dict(schedule='1f1b', microbatches=8), or None, not {value!r}."
            )
        known_keys(key, value, (f.name for f in fields(cls)))
        for name in ("microbatches", "repeats"):
            number = value.get(name, 1)
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(
                    f"{key}.{name}: expected a whole number of at least 1, not {number!r}; 1 is the default."
                )
        if not isinstance(value.get("schedule", ""), str):
            raise InputError(f"{key}.schedule: expected a name such as '1f1b', not {value['schedule']!r}.")
        for name, words in (("gather", GATHERS), ("keep", KEEPS)):
            one_of(f"{key}.{name}", value.get(name, words[0]), words)
        return cls(**{**value, "layers": _counts(value.get("layers"), f"{key}.layers")})

    @property
    def keeps_residuals(self) -> bool:
        """Whether a forward pass leaves what its backward pass needs."""
        return self.keep == "residuals"

    def pieces(self, num_layers: int, num_stages: int) -> tuple[int, ...]:
        """How many layers each piece has, in the model's order. InputError where a declared list does not fit."""
        number = self.repeats * num_stages
        if self.layers is None:
            return even(num_layers, number)
        if len(self.layers) != number or sum(self.layers) != num_layers:
            raise InputError(
                f"pipeline.layers: {plural(len(self.layers), 'number')} with the sum {sum(self.layers)}, but there are"
                f" {plural(number, 'piece')} (repeats={self.repeats} x {plural(num_stages, 'stage')}) and"
                f" {plural(num_layers, 'layer')}; layers={list(even(num_layers, number))} would work."
            )
        return self.layers

    def layer_ids(self, num_layers: int, num_stages: int) -> np.ndarray:
        """int [stage, chunk, layer]: the number in the model of the layer in each slot, NO_LAYER in slots to spare."""
        counts = np.array(self.pieces(num_layers, num_stages))
        first = np.cumsum(counts) - counts
        place = np.arange(max(int(counts.max()), 1))
        ids = np.where(place < counts[:, None], first[:, None] + place, NO_LAYER)
        return ids.reshape(self.repeats, num_stages, -1).transpose(1, 0, 2)


def _counts(value: Any, key: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    good = isinstance(value, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
    if not good or any(n < 0 for n in value):
        raise InputError(f"{key}: expected a list of whole numbers, how many layers each piece has, not {value!r}.")
    return tuple(value)


def even(num_layers: int, number: int) -> tuple[int, ...]:
    """As even as can be: all pieces alike but for some that have one layer less, from both ends inward, last first."""
    most = -(-num_layers // number)
    ends = [piece for pair in zip(reversed(range(number)), range(number), strict=True) for piece in pair]
    short = set(list(dict.fromkeys(ends))[: most * number - num_layers])
    return tuple(most - (piece in short) for piece in range(number))
