"""`ArraySpec`: an array as the layout floor sees it, without data: shape, dtype and one dim name for each dimension."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

# A tree of arrays, specs or shardings: nested dicts, tuples and registered dataclasses.
Tree = Any


@dataclass(frozen=True)
class ArraySpec:
    """An array's logical shape, dtype and dims. A leaf in trees: `map_specs` maps over a tree of them."""

    shape: tuple[int, ...]
    dtype: np.dtype
    dims: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.dims):
            raise ValueError(f"shape {self.shape} and dims {self.dims} differ in number")

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole array."""
        return self.size * np.dtype(self.dtype).itemsize


def is_spec(leaf: object) -> bool:
    """Whether `leaf` is an ArraySpec: the `is_leaf` of every walk over a tree of them."""
    return isinstance(leaf, ArraySpec)


def map_specs(function: Callable[..., Any], specs: Tree, *rest: Tree) -> Tree:
    """`jax.tree.map` over a tree of ArraySpec and trees of the same structure."""
    return jax.tree.map(function, specs, *rest, is_leaf=is_spec)


def path_name(path: tuple[Any, ...]) -> str:
    """A tree path as users read it: `layers/attention/query`."""
    return "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)


def named_specs(specs: Tree) -> list[tuple[str, ArraySpec]]:
    """(path, spec) of every array of a tree, in tree order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(specs, is_leaf=is_spec)
    return [(path_name(path), spec) for path, spec in leaves]
