"""What each mesh axis does around the experts: read off the rows `expert`, `expert_mlp`, `batch`, `length`, `stream`.

    exchanged    cuts experts and tokens: tokens travel over it
    shared       cuts experts, and all its devices have the same tokens: each serves those that chose its experts
    mlp          cuts the experts' hidden layer: all its devices have the same tokens, each gives a part of a sum
    copies       cuts tokens alone: each of its devices has experts of its own, and their gradients are summed

An axis of its own for the experts, the data axis, and (data, tensor) together are cases of this: nothing depends on the
grid that attention uses.
"""

from dataclasses import dataclass

from jax.sharding import PartitionSpec

from meshtrain.layout import Placement
from meshtrain.layout.rules import Axes
from meshtrain.parallel.shard import free_axes, without


@dataclass(frozen=True)
class ExpertAxes:
    """The free axes by their part. batch, length: those that cut the tokens' two dims. expert: all that cut experts,
    slowest first."""

    batch: Axes
    length: Axes
    expert: Axes
    mlp: Axes

    @classmethod
    def of(cls, place: Placement, T: int) -> "ExpertAxes":
        """For rows of T tokens under this layout, as seen from the code being traced.

        Dropless, tokens are cut as the residual stream is, so that with `stream` on a tensor axis each device sends its
        own; with capacity they are cut as inside attention and MLP, so that no slots are made twice.
        """
        expert = free_axes(place, "expert", "use")
        mlp = without(free_axes(place, "expert_mlp", "use"), expert)
        batch, length = free_axes(place, "batch"), free_axes(place, "length")
        stream = free_axes(place, "stream")
        if place.layout.experts.dispatch == "dropless" and stream[: len(length)] == length:
            finer = without(stream, batch, mlp)
            if T % place.size(finer) == 0:
                length = finer
        return cls(without(batch, mlp), without(length, batch, mlp), expert, mlp)

    @property
    def tokens(self) -> Axes:
        """The axes that cut tokens."""
        return self.batch + self.length

    @property
    def exchanged(self) -> Axes:
        """Slowest first."""
        return tuple(axis for axis in self.expert if axis in self.tokens)

    @property
    def shared(self) -> Axes:
        """Over which each device serves a part of the experts for the same tokens."""
        return without(self.expert, self.tokens)

    @property
    def copies(self) -> Axes:
        """Over which the gradients of weights are summed."""
        return without(self.tokens, self.expert)

    @property
    def summed(self) -> Axes:
        """Over which results are parts of a sum."""
        return self.shared + self.mlp

    @property
    def token_spec(self) -> PartitionSpec:
        """[B, T, ...]."""
        return PartitionSpec(self.batch or None, self.length or None)

    @property
    def row_spec(self) -> PartitionSpec:
        """[devices x rows, ...]: what one device holds for its experts; the axes of `mlp` hold the same."""
        return PartitionSpec((self.tokens + self.shared) or None)
