"""Turns a nested dict (from a config file or from flags) into frozen dataclasses, led by their annotations.

A value may be written in any form that loses nothing (`1e-4`, `"1E-4"`, `10.0` for an integer); what would lose
information, an unknown key and a missing one are errors that name the full dotted key. A flag's text and a file's
value go through the same door, so both spell the same thing.
"""

import ast
import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeVar, Union

from meshtrain.errors import InputError, nearest
from meshtrain.run.digits import LARGEST, shown

T = TypeVar("T")

NOTHING = ("none", "null")
MISSING = object()


class _UnfitError(Exception):
    """This value does not fit this annotation; the text says what was expected, and the second part an example."""

    def __init__(self, expected: str, example: str, reason: str = "") -> None:
        super().__init__(expected)
        self.expected, self.example, self.reason = expected, example, reason


def build(cls: type[T], values: Mapping[str, Any], path: str) -> T:
    """An instance of the dataclass `cls` from a nested mapping; `path` is the dotted name of this section.

    Errors (InputError): an unknown key, a missing key, a value that does not fit its annotation, and whatever the
    dataclass itself refuses.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"{path}.{key}: there is no such key.{_valid_name(cls, key, path)}")
        arguments[key] = convert(value, hints[key], f"{path}.{key}")
    for key, field in fields.items():
        if key not in arguments and not _has_default(field):
            nested = _nested_dataclass(hints[key])
            if nested is not None and nested is hints[key]:
                arguments[key] = build(nested, {}, f"{path}.{key}")
                continue
            unfit = _expectation(hints[key])
            raise InputError(f"{path}.{key} must be given: {unfit.expected}, for example {path}.{key}={unfit.example}.")
    try:
        return cls(**arguments)
    except InputError as error:
        raise InputError(_full_key(str(error), path, fields)) from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None


def convert(value: Any, annotation: Any, path: str) -> Any:
    """`value` as the annotated type, or an InputError that names the key, the value and an example."""
    try:
        return _convert(value, annotation, path)
    except _UnfitError as unfit:
        reason = f" ({unfit.reason})" if unfit.reason else ""
        raise InputError(
            f"{path}={shown(value)} ({type(value).__name__}): expected {unfit.expected}{reason}, "
            f"for example {path}={unfit.example}."
        ) from None


def leaves(cls: type, path: str) -> Iterator[tuple[str, str, str]]:
    """(dotted key, type, default) of everything that `cls` and its sections accept, for the help text."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        annotation = hints[field.name]
        nested = _nested_dataclass(annotation)
        if nested is not None:
            yield from leaves(nested, f"{path}.{field.name}")
            continue
        default = "(must be given)"
        if field.default is not dataclasses.MISSING:
            default = repr(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            default = repr(field.default_factory())
        yield f"{path}.{field.name}", _describe(annotation), default


def _convert(value: Any, annotation: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return literal(value)
    if origin in (Union, types.UnionType):
        return _union(value, arguments, path)
    if origin is Literal:
        return _one_of(value, arguments)
    if origin is tuple:
        return _tuple(value, arguments, path)
    if origin in (dict, typing.get_origin(Mapping[str, Any])):
        return _mapping(value, arguments, path)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _section(value, annotation, path)
    scalar = _SCALARS.get(annotation)
    if scalar is None:
        raise TypeError(f"{path}: the annotation {annotation!r} is not one that a config can hold")
    return scalar(_own(value))


def _own(value: Any) -> Any:
    """What NumPy computed in a config file as Python's own number."""
    is_numpy = type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()
    return value.item() if is_numpy else value


def _section(value: Any, annotation: type, path: str) -> Any:
    if isinstance(value, annotation):
        return value
    if isinstance(value, str):
        value = literal(value)
    if not isinstance(value, Mapping):
        raise _UnfitError("a section of keys", f"dict({dataclasses.fields(annotation)[0].name}=...)")
    return build(annotation, value, path)


def _union(value: Any, arguments: tuple[Any, ...], path: str) -> Any:
    optional = type(None) in arguments
    others = [argument for argument in arguments if argument is not type(None)]
    if optional and value is None:
        return None
    if optional and isinstance(value, str) and value.lower() in NOTHING:
        literals = [argument for argument in others if typing.get_origin(argument) is Literal]
        if not any(value in typing.get_args(argument) for argument in literals):
            return None
    unfits: list[_UnfitError] = []
    for argument in others:
        try:
            return _convert(value, argument, path)
        except _UnfitError as unfit:
            unfits.append(unfit)
    expected = " or ".join([unfit.expected for unfit in unfits] + ["none"] * optional)
    raise _UnfitError(expected, unfits[0].example, unfits[0].reason)


def _one_of(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
        if isinstance(value, str) and not isinstance(choice, str) and value == str(choice):
            return choice
    hint = nearest(str(value), [str(choice) for choice in choices])
    raise _UnfitError("one of " + ", ".join(repr(choice) for choice in choices), str(choices[0]), hint.strip())


def _tuple(value: Any, arguments: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    if isinstance(value, str):
        read = literal(value)
        value = read if isinstance(read, list | tuple) else [part for part in value.split(",") if part]
    if not isinstance(value, list | tuple):
        raise _UnfitError("a sequence", "a,b")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_convert(item, arguments[0], path) for item in value)
    if len(value) != len(arguments):
        raise _UnfitError(f"{len(arguments)} values", ",".join(["..."] * len(arguments)))
    return tuple(_convert(item, argument, path) for item, argument in zip(value, arguments, strict=True))


def _mapping(value: Any, arguments: tuple[Any, ...], path: str) -> dict[str, Any]:
    value = literal(value)
    if not isinstance(value, Mapping):
        raise _UnfitError("names with values", "dict(name=...)")
    annotation = arguments[1] if arguments else Any
    return {str(key): convert(item, annotation, f"{path}.{key}") for key, item in value.items()}


def _integer(value: Any) -> int:
    unfit = _UnfitError("an integer", "100")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise unfit
    if isinstance(value, int) and abs(value) <= LARGEST:
        return value
    try:
        exact = Decimal(value.replace("_", "").strip() if isinstance(value, str) else value)
    except InvalidOperation:
        raise unfit from None
    if not exact.is_finite():
        unfit.reason = "it is not finite"
    elif exact.adjusted() > 18 or abs(exact) > LARGEST:  # told by the exponent: 1e999999999 is never written out
        unfit.reason = f"the largest is {LARGEST}"
    elif exact != exact.to_integral_value():
        unfit.reason = "a fraction would be lost"
    else:
        return int(exact)
    raise unfit


def _float(value: Any) -> float:
    unfit = _UnfitError("a number", "0.001")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise unfit
    try:
        number = float(value.replace("_", "").strip() if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        raise unfit from None
    if math.isnan(number) or (isinstance(value, int) and int(number) != value):
        unfit.reason = "a float cannot hold it exactly" if not math.isnan(number) else "it is not a number"
        raise unfit
    return number


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise _UnfitError("true or false", "true")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _UnfitError("a text", "'...'")
    return value


_SCALARS = {int: _integer, float: _float, bool: _boolean, str: _text}


def literal(value: Any) -> Any:
    """The Python literal that a flag's text spells (`4`, `('a', 'b')`, `None`, `true`), or the text itself."""
    if not isinstance(value, str):
        return value
    if value in ("true", "false"):
        return value == "true"
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _expectation(annotation: Any) -> _UnfitError:
    try:
        _convert(object(), annotation, "")
    except _UnfitError as unfit:
        return unfit
    return _UnfitError("a value", "...")


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _nested_dataclass(annotation: Any) -> type | None:
    """The dataclass that an annotation holds, alone or as an optional section."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


def _describe(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("NoneType", "None")


def _valid_name(cls: type, key: str, path: str) -> str:
    """The valid key that is meant: of the same name in a section below, or the nearest one here, or else all."""
    names = [field.name for field in dataclasses.fields(cls)]
    if below := [dotted for dotted, _, _ in leaves(cls, path) if dotted.endswith(f".{key}")]:
        return f" Did you mean {below[0]!r}?"
    if close := nearest(f"{path}.{key}", [f"{path}.{name}" for name in names if nearest(key, [name])]):
        return close
    return f" Valid names: {', '.join(names)}."


def _full_key(text: str, path: str, names: Iterable[str]) -> str:
    """A section's own message with its key written in full: `optimizer.clip: ...` -> `config.optimizer.clip: ...`."""
    parts = path.split(".")
    for depth in range(len(parts)):
        known = ".".join(parts[depth:])
        if text.startswith((f"{known}.", f"{known}:")):
            return ".".join([*parts[:depth], text])
    if text.startswith(tuple(f"{name}{end}" for name in names for end in ".:")):
        return f"{path}.{text}"
    return f"{path}: {text}"
