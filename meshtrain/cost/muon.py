"""What Muon computes on one device: the matrices that are dealt to it, and the products that make them orthogonal.

Who gets which matrices is layout/whole.py's, the products are read off a trace of step/muon.py: neither is written down
twice. Zeros that fill a stack up until it divides are computed as all other matrices are.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.links import Group, group_of
from meshtrain.cost.liveness import bodies, called, peak_bytes
from meshtrain.cost.products import Product
from meshtrain.layout import ArraySpec, Placement, named_specs
from meshtrain.layout.whole import WholeMatrices
from meshtrain.model import ModelConfig, describe
from meshtrain.step.muon import STEPS, newton_schulz
from meshtrain.step.optimizer import OptimizerConfig, matrix_dims

F32 = 4


@dataclass(frozen=True)
class Dealt:
    """One weight's matrices on a device: `number` of [rows, columns], float32.

    exchanges: (devices, bytes) of each all-to-all that makes them whole; as many take them back.
    """

    number: int
    rows: int
    columns: int
    exchanges: tuple[tuple[Group, int], ...] = ()

    @property
    def products(self) -> tuple[Product, ...]:
        """All matrix products of the iteration, of all matrices."""
        sizes = iteration_products(self.rows, self.columns)
        return tuple(Product("muon", m, k, n, float(self.number), 1.0, False) for m, k, n in sizes)

    @property
    def flops(self) -> float:
        """Of these products."""
        return sum(product.flops for product in self.products)

    @property
    def moved_bytes(self) -> int:
        """Read and written by element-wise work: in a turn c A, b A + (c A) A and a X + (..) X, each a kernel of its
        own in H100 programs."""
        short, long = sorted((self.rows, self.columns))
        return STEPS * self.number * (5 * short * short + 3 * short * long) * F32


def whole_matrices(optimizer: OptimizerConfig, place: Placement, spec: ArraySpec) -> WholeMatrices | None:
    """How a weight comes to be whole matrices on each device; None for one that is not Muon's."""
    dims = matrix_dims(spec) if optimizer.name == "muon" else None
    return None if dims is None else WholeMatrices(place, spec, dims.inputs + dims.outputs)


def dealt(model: ModelConfig, optimizer: OptimizerConfig, place: Placement, cluster: Cluster) -> tuple[Dealt, ...]:
    """What a device makes orthogonal in a step, weight by weight; nothing under another optimizer."""
    found = []
    for whole, rows, columns in _weights(model, optimizer, place):
        groups = (group_of(place.axis_sizes, whole.axes(dim), cluster) for dim in whole.cut)
        found.append(Dealt(whole.num_matrices, rows, columns, tuple((group, whole.num_bytes) for group in groups)))
    return tuple(found)


def whole_bytes(model: ModelConfig, optimizer: OptimizerConfig, place: Placement) -> int:
    """The most that a device holds while a weight's matrices are made orthogonal, one weight after the other: the
    matrices, what a turn of the iteration has beside them, and, where they are exchanged, what is sent."""
    return max(
        (
            whole.num_bytes * (2 if whole.cut else 1) + whole.num_matrices * turn_bytes(rows, columns)
            for whole, rows, columns in _weights(model, optimizer, place)
        ),
        default=0,
    )


def _weights(
    model: ModelConfig, optimizer: OptimizerConfig, place: Placement
) -> Iterator[tuple[WholeMatrices, int, int]]:
    """Of each weight that is Muon's its stack, and the rows and columns of a matrix."""
    for _, spec in named_specs(describe(model)) if optimizer.name == "muon" else ():
        whole, dims = whole_matrices(optimizer, place, spec), matrix_dims(spec)
        if whole is not None and dims is not None:
            rows, columns = (math.prod(spec.shape[i] for i in some) for some in dims)
            yield whole, rows, columns


@cache
def iteration_products(rows: int, columns: int) -> tuple[tuple[int, int, int], ...]:
    """(m, k, n) of each product [m, k] x [k, n] with which one matrix is made orthogonal."""
    return tuple(_products(_trace(rows, columns)))


@cache
def turn_bytes(rows: int, columns: int) -> int:
    """The most that a turn of the iteration holds at once beside the matrix that it begins with."""
    loops = (eqn for eqn in _trace(rows, columns).eqns if eqn.primitive.name == "scan")
    return max(peak_bytes(body) for loop in loops for body in bodies(loop))


def _trace(rows: int, columns: int) -> Any:
    x, coefficients = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, columns), (3,)))
    return jax.make_jaxpr(newton_schulz, static_argnums=2)(x, coefficients, 1e-8).jaxpr


def _products(jaxpr: Any) -> Iterator[tuple[int, int, int]]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            m, n = eqn.outvars[0].aval.shape
            yield m, eqn.invars[0].aval.size // m, n
        elif eqn.primitive.name == "scan":
            yield from eqn.params["length"] * [*_products(next(iter(bodies(eqn))))]
        elif (inner := called(eqn)) is not None:
            yield from _products(inner)
