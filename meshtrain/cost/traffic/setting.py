"""`Setting`: a step under a layout, with what every part of the prediction asks of it: axes, and bytes on a device.

All sizes come from the placement: an array of these dims, as large as one device's part of it in this class.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshtrain.cost.collective import Collective
from meshtrain.cost.traffic.turns import Turns, make_turns
from meshtrain.layout import ArraySpec, Placement
from meshtrain.layout.inventory import axes_of, local_bytes
from meshtrain.layout.rules import Axes
from meshtrain.parallel.pipeline.share import token_share
from meshtrain.parallel.shard import without
from meshtrain.step import StepConfig


@dataclass(frozen=True, eq=False)
class Setting:
    """A step of `global_batch` rows of `length` tokens under a placement; packed: rows hold several documents."""

    config: StepConfig
    place: Placement
    global_batch: int
    length: int
    packed: bool = False

    @cached_property
    def turns(self) -> Turns:
        """How often a step runs what."""
        return make_turns(self.config.model, self.place)

    @property
    def rows(self) -> int:
        """Sequences of a microbatch, on all devices."""
        return self.global_batch // self.place.num_microbatches

    @cached_property
    def axes(self) -> dict[str, Axes]:
        """Activation dim -> the axes larger than 1 that cut it."""
        dims = ("batch", "length", "stream", "heads", "kv_heads", "mlp", "vocab", "layers")
        return {dim: self.place.axes(dim) for dim in dims}

    @cached_property
    def own_axes(self) -> Axes:
        """The tokens' axes that a pipeline reduces over once a step."""
        share = token_share(self.place, self.config.model.moe is not None)
        return tuple(axis for axis in share.axes if self.place.axis_sizes[axis] > 1)

    @property
    def vocab(self) -> Axes:
        """The axes of the tables' rows in use, without those of the tokens."""
        return without(self.place.axes("vocab", "use"), *self.tokens)

    @property
    def tokens(self) -> tuple[Axes, Axes]:
        """The axes of batch and length."""
        return self.axes["batch"], self.axes["length"]

    def ordered(self, axes: Iterable[str]) -> Axes:
        """Axes in the order of the mesh, each once."""
        wanted = set(axes)
        return tuple(axis for axis in self.place.axis_sizes if axis in wanted)

    def activation(self, shape: tuple[int, ...], dims: tuple[str, ...], dtype: np.dtype | None = None) -> int:
        """Bytes of a device's part of an activation; in the compute dtype, if none is named."""
        return local_bytes(self.place, "activations", ArraySpec(shape, dtype or self.config.precision.dtype, dims))

    @cached_property
    def hidden(self) -> int:
        """Bytes of what enters a sublayer: [batch, length, embed]."""
        return self.activation((self.rows, self.length, self.config.model.embed), ("batch", "length", "embed"))

    @cached_property
    def boundary(self) -> int:
        """Bytes of the residual stream: [batch, stream, embed]."""
        return self.activation((self.rows, self.length, self.config.model.embed), ("batch", "stream", "embed"))

    def weight(self, spec: ArraySpec, kind: str, dtype: np.dtype) -> int:
        """Bytes of a device's part of a weight in a class."""
        return local_bytes(self.place, kind, ArraySpec(spec.shape, dtype, spec.dims))

    def weight_axes(self, spec: ArraySpec, kind: str) -> Axes:
        """All axes that cut a weight in a class."""
        return self.ordered(axis for of_dim in axes_of(self.place, kind, spec) for axis in of_dim)

    def make(
        self, kind: str, axes: Axes, num_bytes: int, count: int, phase: str, dim: str, why: str, room: int = 0
    ) -> list[Collective]:
        """The collective, or none where there is nobody to send to, nothing to send, or no time."""
        axes = self.ordered(axes)
        size = self.place.size(axes)
        if size == 1 or not num_bytes or not count:
            return []
        return [Collective(kind, axes, size, num_bytes, count, phase, dim, why, room)]
