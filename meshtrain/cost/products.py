"""The matrix products of a model's layers, read off the weights that the model describes: sizes, not a second formula.

A weight is a matrix [contracted dims] x [other dims]; those beside each other that read the same input (query, key and
value; gate and up) are one product. What a token's products add up to is held equal to model/flops.py by a test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from meshtrain.cost.software import Software
from meshtrain.layout import ArraySpec, named_specs
from meshtrain.layout.dims import WIDTHS
from meshtrain.model import ModelConfig, describe
from meshtrain.model.flops import is_matrix

Dims = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Matrix:
    """One weight of all layers that have it: contracted and other dims with their sizes; `layers` have it.

    part: the module that it belongs to ("attention", "mlp", ...). experts: how many of it a layer has, 0 where it is
    no expert's and all tokens go through it.
    """

    part: str
    contracted: Dims
    other: Dims
    layers: int
    experts: int

    @property
    def down(self) -> bool:
        """Whether the result is what its module adds to the stream."""
        return self.other[-1][0] in WIDTHS


@dataclass(frozen=True)
class Product:
    """[tokens, inner] x [inner, outer] on one device, `experts` of them side by side; `share` of the layers have it.

    routed: whether only the tokens that chose an expert go through it."""

    part: str
    tokens: float
    inner: float
    outer: float
    experts: float
    share: float
    down: bool
    routed: bool = False

    @property
    def flops(self) -> float:
        """In an average layer; a multiply-add is two."""
        return 2 * self.tokens * self.inner * self.outer * self.experts * self.share


@lru_cache(maxsize=64)
def matrices(model: ModelConfig) -> tuple[Matrix, ...]:
    """The weights that tokens are multiplied with in the layers."""
    return tuple(_matrix(path, spec) for path, spec in named_specs(describe(model)) if is_matrix(path, spec))


def _matrix(path: str, spec: ArraySpec) -> Matrix:
    layers, *rest = zip(spec.dims, spec.shape, strict=True)
    experts = 0
    if rest[0][0] == "expert":
        experts = rest.pop(0)[1]
    inner = len(rest) - 1 if rest[-1][0] in WIDTHS else 1
    return Matrix(path.split("/")[-2], tuple(rest[:inner]), tuple(rest[inner:]), layers[1], experts)


def layer_products(
    model: ModelConfig, cuts: Mapping[str, int], tokens: float, routed: float = 1.0
) -> tuple[Product, ...]:
    """The products of an average layer on a device that holds `tokens` of a microbatch, weights cut as `cuts` says.

    routed: rows of the device's experts for each pair of one of its tokens and an expert (`Split.routed`)."""
    found: dict[tuple[str, Dims, bool, int, int], float] = {}
    for matrix in matrices(model):
        key = (matrix.part, matrix.contracted, matrix.down, matrix.layers, matrix.experts)
        found[key] = found.get(key, 0.0) + _size(matrix.other, cuts)
    products = []
    for (part, contracted, down, layers, experts), outer in found.items():
        held = experts / cuts.get("expert", 1) if experts else 1.0
        rows = tokens * routed * model.moe.top_k if experts and model.moe else tokens
        inner, share = _size(contracted, cuts), layers / model.num_layers
        products.append(Product(part, rows / held, inner, outer, held, share, down, experts > 0))
    return tuple(products)


def output_product(model: ModelConfig, cuts: Mapping[str, int], tokens: float) -> Product:
    """The product with the output matrix."""
    return Product("output", tokens, float(model.embed), -(-model.vocab // cuts.get("vocab", 1)), 1.0, 1.0, False)


def _size(dims: Dims, cuts: Mapping[str, int]) -> float:
    """Elements of these dims on one device; heads that are fewer than their cuts are held whole by each."""
    size = 1.0
    for dim, whole in dims:
        size *= max(whole / cuts.get(dim, 1), 1.0)
    return size


def product_seconds(product: Product, peak: float, memory: float, software: Software, itemsize: int) -> float:
    """Seconds of one pass through a product: forward, gradient of the input, or of the weight (the same three sizes).

    Bound by the units, less what small sizes leave idle, or by memory; `peak` and `memory` as programs get them.
    """
    m, k, n, half = product.tokens, product.inner, product.outer, software.half_size
    filled = m / (m + half) * k / (k + half) * n / (n + half)
    busy = 2 * m * k * n / (peak * filled)
    moved = (m * k + k * n + m * n) * itemsize / memory
    return (max(busy, moved) * product.experts + software.kernel) * product.share
