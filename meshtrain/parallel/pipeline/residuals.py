"""What a piece's forward pass leaves for its backward pass: arrays that wait in slots, and how they fit together again.

The weights are among the residuals of a product, but they are at hand whenever the backward pass runs: not kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from meshtrain.layout import Tree


@dataclass(frozen=True)
class Form:
    """A backward pass without its arrays. sources: for each of these where it is found, (False, which of the weights)
    or (True, which of the kept)."""

    tree: Any
    sources: tuple[tuple[bool, int], ...]


def take_apart(transpose: Callable[..., Any], weights: Tree) -> tuple[Form, list[jax.Array]]:
    """The form of `transpose`, as jax.vjp returns it, and the arrays to keep; `weights` are those it was taken at."""
    leaves, tree = jax.tree.flatten(transpose)
    numbers = {id(weight): (False, number) for number, weight in enumerate(jax.tree.leaves(weights))}
    kept: list[jax.Array] = []
    for leaf in leaves:
        if id(leaf) not in numbers:
            numbers[id(leaf)] = (True, len(kept))
            kept.append(leaf)
    return Form(tree, tuple(numbers[id(leaf)] for leaf in leaves)), kept


def put_together(form: Form, weights: Tree, kept: list[jax.Array]) -> Callable[..., Any]:
    """The backward pass that was taken apart, or another of the same form: of these weights and what was kept."""
    found = (jax.tree.leaves(weights), kept)
    return jax.tree.unflatten(form.tree, [found[is_kept][number] for is_kept, number in form.sources])
