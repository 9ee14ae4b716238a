"""What the schemes make a program of: permutes outside every branch, no more than the schedule asks for, none again."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshtrain.layout import Placement
from meshtrain.model.remat import rematerialize
from meshtrain.parallel.attention import Mask, attend
from tests.parallel.attention.context import MASK, H, T, placed

COLLECTIVES = {"ppermute", "all_gather", "all_to_all", "reduce_scatter", "psum", "psum_invariant"}


def equations(jaxpr: Any, times: int = 1, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """(primitive, how often it runs, the branches and loops that it stands in)."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        yield name, times, inside
        repeats = times * equation.params["length"] if name == "scan" else times
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                body = getattr(inner, "jaxpr", inner)
                if hasattr(body, "eqns"):
                    yield from equations(body, repeats, (*inside, name) if name in ("cond", "while") else inside)


def program(place: Placement, mask: Mask = MASK, remat: str = "none") -> Any:
    """Forward and backward of one layer's attention."""
    ids = jnp.zeros((2, T), jnp.int32)

    def layer(qkv: Any) -> Any:
        from jax.ad_checkpoint import checkpoint_name

        q, k, v = (checkpoint_name(x, name) for x, name in zip(qkv, ("query", "key", "value"), strict=True))
        return attend(q, k, v, positions_BT=ids, segments_BT=ids, mask=mask, place=place)

    qkv = [jnp.zeros((2, T, n, H)) for n in (4, 2, 2)]
    return jax.make_jaxpr(jax.grad(lambda qkv: rematerialize(layer, remat)(qkv).sum()))(qkv).jaxpr


def collectives(jaxpr: Any) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, times, _ in equations(jaxpr):
        if name in COLLECTIVES:
            counts[name] += times
    return counts


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("window", [None, 7])
def test_no_collective_stands_in_a_branch(order: str, window: int | None) -> None:
    """A permute that devices reach by different ways waits for ever, or pairs with another one."""
    found = list(equations(program(placed("ring", order, 8), Mask(1.0, window=window))))
    assert any(name == "ppermute" for name, _, _ in found)
    assert not [inside for name, _, inside in found if name in COLLECTIVES and inside]
    if order == "contiguous":
        assert any(name == "cond" for name, _, _ in found)  # there are branches that it could stand in


def test_what_each_scheme_exchanges() -> None:
    """Ring: n - 1 sends of (keys and values, ids) forward and backward, n of the gradients, the last of them home."""
    assert collectives(program(placed("ring", "zigzag", 8))) == {"ppermute": 2 * 7 + 2 * 7 + 8}
    assert collectives(program(placed("gather", "zigzag", 8))) == {"all_gather": 4, "reduce_scatter": 1}
    assert collectives(program(placed("ulysses", "contiguous", 2))) == {"all_to_all": 8, "all_gather": 1}
    assert collectives(program(placed("usp", "zigzag", 4, 2))) == {"all_to_all": 8, "all_gather": 1, "ppermute": 16}


def test_a_window_sends_less() -> None:
    """6 tokens a device, window 7: each query sees into one shard before its own; in the zigzag into two neighbours."""
    window = Mask(1.0, window=7)
    assert collectives(program(placed("ring", "contiguous", 8), window)) == {"ppermute": 2 + 2 + 2}
    assert collectives(program(placed("ring", "zigzag", 8), Mask(1.0, window=4))) == {"ppermute": 4 + 4 + 3}


@pytest.mark.parametrize(("scheme", "sizes"), [("ring", (4,)), ("gather", (4,)), ("ulysses", (2,)), ("usp", (2, 2))])
@pytest.mark.parametrize("remat", ["dots", "names"])
def test_kept_results_are_not_exchanged_for_again(scheme: str, sizes: tuple[int, ...], remat: str) -> None:
    """These policies keep attention's output and log-sum-exp, so backward does not run the forward ring again."""
    place = placed(scheme, "zigzag", *sizes)
    kept, none = collectives(program(place, remat=remat)), collectives(program(place))
    if scheme in ("ulysses", "usp"):
        assert kept["all_gather"] == 1 + none["all_gather"]  # positions and segments: a few bytes a token
        kept["all_gather"] -= 1
    assert kept == none
    assert collectives(program(place, remat="full")).total() > collectives(program(place)).total()


def test_the_next_keys_are_sent_before_they_are_needed() -> None:
    """In the loop's body the permute stands before the first product, and no product before it reads what it brings."""
    body = next(
        inner
        for inner in bodies(program(placed("ring", "zigzag", 8)), "scan")
        if any(equation.primitive.name == "ppermute" for equation in inner.eqns)
    )
    names = [equation.primitive.name for equation in body.eqns]
    heavy = [i for i, name in enumerate(names) if name in ("dot_general", "pjit", "jit", "custom_jvp_call", "while")]
    assert names.index("ppermute") < min(heavy)


def bodies(jaxpr: Any, primitive: str) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, list | tuple) else [value]:
                body = getattr(inner, "jaxpr", inner)
                if hasattr(body, "eqns"):
                    if equation.primitive.name == primitive:
                        yield body
                    yield from bodies(body, primitive)
