"""The optimizer: optax transformations, with everything that depends on a weight's role decided by its dims.

The transformation makes the update for a learning rate of 1; the step scales it by the schedule's value.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import optax

from meshtrain.errors import InputError, one_of
from meshtrain.layout import ArraySpec, Placement, Tree, map_specs
from meshtrain.layout.dims import STACKS, WIDTHS
from meshtrain.step.muon import MatrixDims, scale_by_muon
from meshtrain.step.schedule import ScheduleConfig

NAMES = ("adamw", "muon", "sgd")

# Dims that, beside STACKS, do not make a weight a matrix: a head's inner width (a bias is [heads, head_dim]).
_INNER = ("head_dim",)

UNNAMED = "unnamed"  # a dimension of what belongs to no weight, such as Muon's coefficients: no rule can cut it


@dataclass(frozen=True)
class OptimizerConfig:
    """name: "adamw", "muon" (hidden matrices orthogonalised, AdamW for the rest), or "sgd" (the gradient itself: no
    momentum, no moments).

    learning_rate: the schedule's peak. b1, b2, eps: AdamW's decay rates and epsilon. beta: Muon's momentum.
    weight_decay: decoupled; for matrices (weights with at least two dims besides layers and head_dim: projections and
    embeddings), never for norm scales and biases. clip: the largest global norm of the gradient, or None.
    """

    name: str = "adamw"
    learning_rate: float = 3e-4
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    beta: float = 0.95
    weight_decay: float = 0.1
    clip: float | None = 1.0
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        one_of("optimizer.name", self.name, NAMES)
        if not self.learning_rate > 0 or self.eps <= 0 or self.weight_decay < 0:
            raise InputError(
                f"optimizer: learning_rate={self.learning_rate} and eps={self.eps} must be above 0, and"
                f" weight_decay={self.weight_decay} at least 0."
            )
        if self.clip is not None and self.clip <= 0:
            raise InputError(f"optimizer.clip: {self.clip} must be above 0, or None for no clipping.")
        for name in ("b1", "b2", "beta"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"optimizer.{name}: {getattr(self, name)} must be at least 0 and below 1.")


def decays(spec: ArraySpec) -> bool:
    """Whether weight decay applies: to matrices, by dims (the rank is no rule: stacked norm scales have rank 2)."""
    return len(set(spec.dims) - set(STACKS) - set(_INNER)) >= 2


def decay_mask(specs: Tree) -> Tree:
    """The tree of booleans that says which weights decay."""
    return map_specs(decays, specs)


def make_optimizer(
    config: OptimizerConfig, specs: Tree, place: Placement | None = None
) -> optax.GradientTransformation:
    """Updates at a learning rate of 1 for weights of these (logical) specs. place: where the state lies in parts, for
    what needs whole matrices; None for its structure alone, and for arrays that are whole."""
    mask = decay_mask(specs)
    if config.name == "adamw":
        return optax.adamw(1.0, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=config.weight_decay, mask=mask)
    decay = optax.add_decayed_weights(-config.weight_decay, mask)
    if config.name == "sgd":
        return optax.chain(optax.scale(-1.0), decay)
    matrices = map_specs(matrix_dims, specs)
    muon = optax.chain(scale_by_muon(config.beta, config.eps, specs, matrices, place), optax.scale(-1.0))
    adam = optax.adamw(1.0, b1=config.b1, b2=config.b2, eps=config.eps, weight_decay=0.0, nesterov=True)
    kinds = map_specs(lambda spec: "muon" if matrix_dims(spec) else "adam", specs)
    return optax.chain(optax.partition({"muon": muon, "adam": adam}, kinds), decay)


def matrix_dims(spec: ArraySpec) -> MatrixDims | None:
    """How a hidden weight is a matrix from its inputs to its outputs; None for all others.

    [..., embed] writes the residual stream; of all others the first dim is the input: [embed, ...] reads the stream,
    [latent, ...] a latent. Each expert has a matrix of its own; a router is an output, like that of the vocabulary.
    """
    inner = [i for i, dim in enumerate(spec.dims) if dim not in (*STACKS, "expert")]
    if not decays(spec) or not set(STACKS) & set(spec.dims) or "router" in spec.dims:
        return None
    split = len(inner) - 1 if spec.dims[-1] in WIDTHS else 1
    return MatrixDims(tuple(inner[:split]), tuple(inner[split:]))


def optimizer_specs(optimizer: optax.GradientTransformation, specs: Tree) -> Tree:
    """ArraySpec of every array of the optimizer's state: a moment has the dims of its weight, others have no named dim.

    A moment is told by its path, which ends with its weight's. Nothing is made on a device.
    """
    shapes = map_specs(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), specs)
    weights = dict(jax.tree_util.tree_flatten_with_path(specs, is_leaf=lambda x: isinstance(x, ArraySpec))[0])

    def spec(path: tuple[Any, ...], x: jax.ShapeDtypeStruct) -> ArraySpec:
        ends = (path[start:] for start in range(len(path)))
        weight = next((weights[end] for end in ends if end in weights), None)
        return ArraySpec(x.shape, x.dtype, weight.dims if weight else (UNNAMED,) * x.ndim)

    return jax.tree_util.tree_map_with_path(spec, jax.eval_shape(optimizer.init, shapes))
