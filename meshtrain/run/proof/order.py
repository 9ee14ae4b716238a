"""In which order a forward pass uses its weights, read off its trace: the first wrong gradient is the telling one."""

from typing import Any

import jax

from meshtrain.layout import Tree, path_name

# A use inside a loop or a call comes after what stands before that call and before what stands after it.
Position = tuple[int, ...]


def order_of_use(function: Any, weights: Tree, *rest: Any) -> list[str]:
    """Paths of the leaves of `weights` by their first use in `function(weights, *rest)`; unused ones at the end."""
    closed = jax.make_jaxpr(function)(weights, *rest)
    leaves, _ = jax.tree_util.tree_flatten_with_path(weights)
    first = _first_uses(closed.jaxpr)
    variables = closed.jaxpr.invars[: len(leaves)]
    named = [(first.get(variable), path_name(path)) for variable, (path, _) in zip(variables, leaves, strict=True)]
    return [name for _, name in sorted(named, key=lambda item: (item[0] is None, item[0] or ()))]


def _first_uses(jaxpr: Any) -> dict[Any, Position]:
    """Each variable of a jaxpr -> where it is first used, going into the bodies of loops and calls."""
    uses: dict[Any, Position] = {}
    for number, equation in enumerate(jaxpr.eqns):
        inner = _inner_uses(equation)
        for index, variable in enumerate(equation.invars):
            if hasattr(variable, "val"):  # a literal
                continue
            uses.setdefault(variable, (number, *inner.get(index, ())))
    return uses


def _inner_uses(equation: Any) -> dict[int, Position]:
    """Operand number -> where the body of a loop or call uses it; nothing where operands and inputs do not line up."""
    for value in equation.params.values():
        body = getattr(value, "jaxpr", value)
        if hasattr(body, "eqns") and len(body.invars) == len(equation.invars):
            uses = _first_uses(body)
            return {i: uses[variable] for i, variable in enumerate(body.invars) if variable in uses}
    return {}
