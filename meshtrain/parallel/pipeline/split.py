"""Cuts a backward pass in two: what the stage before waits for now, and the weight gradients for later.

The function's own trace is cut, so nothing is computed twice: what the later half needs of the first is handed over as
a tape (the inputs and the output gradients of the matrix products). A loop over layers is cut inside its body.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# Calls that are looked into: nothing but a name around their equations, once no more derivatives are taken.
_INLINED = ("pjit", "jit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
            "custom_vjp_call", "custom_vjp_call_jaxpr")  # fmt: skip

Id = int
Source = Id | Literal


@dataclass(frozen=True)
class _Equation:
    """One equation, its inputs and outputs by number; `body` where it is a loop that is cut."""

    eqn: JaxprEqn
    ins: tuple[Source, ...]
    outs: tuple[Id, ...]


@dataclass(frozen=True)
class _Program:
    """Equations in order over numbered values; `consts` are values known when it was traced."""

    equations: tuple[_Equation, ...]
    ins: tuple[Id, ...]
    outs: tuple[Source, ...]
    consts: dict[Id, Any]


def _flatten(closed: ClosedJaxpr) -> _Program:
    """The program of a traced function, with calls inlined."""
    counter = iter(range(1 << 62))
    equations: list[_Equation] = []
    consts: dict[Id, Any] = {}

    def walk(jaxpr: Jaxpr, values: dict[Any, Source]) -> list[Source]:
        def read(atom: Any) -> Source:
            return atom if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr")) if eqn.primitive.name in _INLINED else None
            if inner is None:
                values.update((var, next(counter)) for var in eqn.outvars)
                equations.append(_Equation(eqn, ins, tuple(values[var] for var in eqn.outvars)))  # type: ignore[misc]
                continue
            body, constants = (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())
            known = {var: constant(value) for var, value in zip(body.constvars, constants, strict=True)}
            outs = walk(body, known | dict(zip(body.invars, ins, strict=True)))
            values.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def constant(value: Any) -> Id:
        number = next(counter)
        consts[number] = value
        return number

    jaxpr = closed.jaxpr
    start: dict[Any, Source] = {var: constant(value) for var, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    ins = [next(counter) for _ in jaxpr.invars]
    outs = walk(jaxpr, start | dict(zip(jaxpr.invars, ins, strict=True)))
    return _Program(tuple(equations), tuple(ins), tuple(outs), consts)


Values = dict[Id, Any]


def _read(values: Values, source: Source) -> Any:
    return source.val if isinstance(source, Literal) else values[source]


def _run(equation: _Equation, values: Values) -> None:
    """Compute one whole equation into `values`."""
    eqn = equation.eqn
    with eqn.ctx.manager:  # the mesh and settings that it was traced under
        params = eqn.primitive.get_bind_params(eqn.params)
        found = eqn.primitive.bind(*[_read(values, source) for source in equation.ins], **params)
    values.update(zip(equation.outs, found if eqn.primitive.multiple_results else [found], strict=True))


@dataclass(frozen=True)
class _Loop:
    """A scan that is cut: its own program, and which carries and outputs the first half has."""

    body: "Cut"
    num_consts: int
    carries_now: tuple[bool, ...]
    ys_now: tuple[bool, ...]


@dataclass(frozen=True)
class Cut:
    """A function in two halves: `now(*arguments) -> (outputs, tape)` and `later(tape) -> the other outputs`."""

    program: _Program
    wanted: tuple[bool, ...]  # for each output, whether `now` makes it
    first: frozenset[int]  # equations that `now` runs whole
    loops: dict[int, _Loop]  # equations that both run in part
    taped: tuple[Id, ...]  # values handed over

    def now(self, *arguments: Any) -> tuple[list[Any], list[Any]]:
        """The wanted outputs, and the tape."""
        values: Values = {**self.program.consts, **dict(zip(self.program.ins, arguments, strict=True))}
        tapes: list[Any] = []
        for number, equation in enumerate(self.program.equations):
            if number in self.loops:
                tapes.append(_loop_now(self.loops[number], equation, values))
            elif number in self.first:
                _run(equation, values)
        outs = [_read(values, source) for source, now in zip(self.program.outs, self.wanted, strict=True) if now]
        return outs, [*[values[number] for number in self.taped], *tapes]

    def later(self, tape: Sequence[Any]) -> list[Any]:
        """The outputs that `now` left out."""
        values: Values = {**self.program.consts, **dict(zip(self.taped, tape, strict=False))}
        loop_tapes = iter(tape[len(self.taped) :])
        for number, equation in enumerate(self.program.equations):
            if number in self.loops:
                _loop_later(self.loops[number], equation, values, next(loop_tapes))
            elif number not in self.first:
                _run(equation, values)
        return [_read(values, source) for source, now in zip(self.program.outs, self.wanted, strict=True) if not now]


def cut(function: Callable[..., Sequence[Any]], arguments: Sequence[Any], wanted: Sequence[bool]) -> Cut:
    """The two halves of a function of arrays that returns a flat list of them; `wanted` says what `now` makes."""
    return _cut(_flatten(jax.make_jaxpr(function)(*arguments)), tuple(wanted))


def _cut(program: _Program, wanted: tuple[bool, ...]) -> Cut:
    needed = {source for source, now in zip(program.outs, wanted, strict=True) if now and isinstance(source, Id)}
    first: set[int] = set()
    loops: dict[int, _Loop] = {}
    for number in reversed(range(len(program.equations))):
        equation = program.equations[number]
        asked = tuple(out in needed for out in equation.outs)
        if not any(asked):
            continue
        if equation.eqn.primitive.name == "scan" and not all(asked):
            loop = _cut_loop(equation.eqn, asked)
            if not all((*loop.carries_now, *loop.ys_now)):
                loops[number] = loop
                needed.update(_ids(equation.ins))  # (all its inputs: the halves of a loop share them)
                continue
        first.add(number)
        needed.update(_ids(equation.ins))
    return Cut(program, wanted, frozenset(first), loops, _crossing(program, wanted, first, loops))


def _crossing(program: _Program, wanted: tuple[bool, ...], first: set[int], loops: dict[int, _Loop]) -> tuple[Id, ...]:
    """What the second half reads and does not make itself."""
    made = set(program.consts)
    read: list[Id] = []
    for number, equation in enumerate(program.equations):
        if number in loops:
            loop = loops[number]
            made.update(
                out for out, now in zip(equation.outs, (*loop.carries_now, *loop.ys_now), strict=True) if not now
            )
            read += _ids(_loop_inputs_later(loop, equation))
        elif number not in first:
            read += _ids(equation.ins)
            made.update(equation.outs)
    read += _ids(source for source, now in zip(program.outs, wanted, strict=True) if not now)
    return tuple(dict.fromkeys(number for number in read if number not in made))


def _ids(sources: Iterable[Source]) -> list[Id]:
    return [source for source in sources if isinstance(source, Id)]


def _cut_loop(eqn: JaxprEqn, asked: tuple[bool, ...]) -> _Loop:
    """The body cut so that the first half makes what is asked, and every carry that this depends on."""
    num_consts, num_carry = loop_sizes(eqn.params)
    body = _flatten(eqn.params["jaxpr"])
    carries = asked[:num_carry]
    while True:
        halves = _cut(body, (*carries, *asked[num_carry:]))
        used = _used_now(halves)
        grown = tuple(have or body.ins[num_consts + i] in used for i, have in enumerate(carries))
        if grown == carries:
            return _Loop(halves, num_consts, carries, asked[num_carry:])
        carries = grown


def loop_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """Numbers of constants and carries of a scan, as either line of JAX writes them."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carries, _ = params["ft_in"].unpack()
    return len(consts), len(carries)


def _used_now(halves: Cut) -> set[Id]:
    """Values that the first half reads."""
    used = set(_ids(source for source, now in zip(halves.program.outs, halves.wanted, strict=True) if now))
    for number in halves.first | set(halves.loops):
        used.update(_ids(halves.program.equations[number].ins))
    return used


def _parts(loop: _Loop, equation: _Equation) -> tuple[tuple[Source, ...], tuple[Source, ...], tuple[Source, ...]]:
    n, c = loop.num_consts, len(loop.carries_now)
    return equation.ins[:n], equation.ins[n : n + c], equation.ins[n + c :]


def _loop_inputs_later(loop: _Loop, equation: _Equation) -> list[Source]:
    """Where the carries of the second half start; all else that it needs is on the loop's own tape."""
    return [source for source, now in zip(_parts(loop, equation)[1], loop.carries_now, strict=True) if not now]


def _pick(items: Sequence[Any], flags: Sequence[bool], value: bool) -> list[Any]:
    return [item for item, flag in zip(items, flags, strict=True) if flag == value]


def _merge(flags: Sequence[bool], true: Iterable[Any], false: Iterable[Any]) -> list[Any]:
    true, false = iter(true), iter(false)
    return [next(true) if flag else next(false) for flag in flags]


def _loop_now(loop: _Loop, equation: _Equation, values: Values) -> list[Any]:
    """Run the first half of every turn; returns the tape, one entry for each turn."""
    consts, init, xs = ([_read(values, source) for source in part] for part in _parts(loop, equation))
    waiting = _pick(init, loop.carries_now, False)

    def turn(carry: list[Any], xs: list[Any]) -> tuple[list[Any], tuple[list[Any], list[Any]]]:
        # A carry of the second half is not read by the first: its start value stands in for it.
        outs, tape = loop.body.now(*consts, *_merge(loop.carries_now, carry, waiting), *xs)
        return outs[: len(carry)], (outs[len(carry) :], _without(loop, tape))

    carry, (ys, tape) = _scan(turn, _pick(init, loop.carries_now, True), xs, equation)
    made = zip(_pick(equation.outs, (*loop.carries_now, *loop.ys_now), True), [*carry, *ys], strict=True)
    values.update(made)
    return tape


def _later_carries(loop: _Loop) -> list[Id]:
    carries = loop.body.program.ins[loop.num_consts : loop.num_consts + len(loop.carries_now)]
    return _pick(carries, loop.carries_now, False)


def _without(loop: _Loop, tape: list[Any]) -> list[Any]:
    """The tape of one turn without the second half's own carries."""
    mine = set(_later_carries(loop))
    names = [*loop.body.taped, *[None] * (len(tape) - len(loop.body.taped))]
    return [value for name, value in zip(names, tape, strict=True) if name not in mine]


def _loop_later(loop: _Loop, equation: _Equation, values: Values, tape: list[Any]) -> None:
    """Run the second half of every turn from the tape."""
    mine = _later_carries(loop)

    def turn(carry: list[Any], tape: list[Any]) -> tuple[list[Any], list[Any]]:
        own, rest = dict(zip(mine, carry, strict=True)), iter(tape)
        whole = [own[name] if name in own else next(rest) for name in loop.body.taped]
        outs = loop.body.later([*whole, *rest])
        return outs[: len(carry)], outs[len(carry) :]

    init = [_read(values, source) for source in _loop_inputs_later(loop, equation)]
    carry, ys = _scan(turn, init, tape, equation)
    values.update(zip(_pick(equation.outs, (*loop.carries_now, *loop.ys_now), False), [*carry, *ys], strict=True))


def _scan(turn: Callable, init: list[Any], xs: Any, equation: _Equation) -> tuple[Any, Any]:
    params = equation.eqn.params
    return jax.lax.scan(turn, init, xs, params["length"], reverse=params["reverse"], unroll=params["unroll"])
