"""config.json <-> `ModelConfig`: groups of keys that together say some fields, each group read and written here.

Reading takes keys away from the file's dict. What no group takes must be known to be irrelevant for what the model
computes, or it is an error that names it: a key that nobody looked at is a model that was read wrongly.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from meshtrain.errors import InputError, nearest
from meshtrain.model import ModelConfig

REQUIRED = object()
Values = dict[str, Any]
_CALLED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


class Reader:
    """The dict of a config.json while it is read; `source` is its path, for errors."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values, self.source = values, source
        self.taken: set[str] = set()

    def take(self, key: str, default: Any = REQUIRED) -> Any:
        """The value of a key, or the default where it does not stand there."""
        self.taken.add(key)
        if key in self.values:
            return self.values[key]
        if default is REQUIRED:
            raise InputError(f"{self.source}: no {key!r}.{nearest(key, self.values)}")
        return default

    def has(self, key: str) -> bool:
        """Whether the key stands there with a value."""
        return self.values.get(key) is not None

    def error(self, key: str, why: str) -> InputError:
        """An error that names file, key and value."""
        return InputError(f"{self.source}: {key}={self.values.get(key)!r}: {why}")


class Group:
    """Some keys of config.json that say some fields of ModelConfig."""

    keys: tuple[str, ...] = ()

    def read(self, given: Reader) -> Values:
        """Fields by name; InputError for a value that cannot be honoured."""
        raise NotImplementedError

    def write(self, model: ModelConfig) -> Values:
        """Keys by name, such that `read` gives the fields back."""
        raise NotImplementedError


def typed(field: str, value: Any, of: type = ModelConfig) -> Any:
    """A value for a plain field of a config, whole numbers as floats where it is one; TypeError where it is not one.

    JSON as Python reads it has numbers that are none (NaN, Infinity): they are refused as well.
    """
    kinds = _kinds(of, field)
    if not kinds:
        return value
    try:
        value = float(value) if type(value) is int and float in kinds else value
        if type(value) in kinds and (type(value) is not float or math.isfinite(value)):
            return value
    except OverflowError:
        pass
    raise TypeError(f"expected {_CALLED[kinds[0]]}")


def all_typed(fields: Values, of: type = ModelConfig) -> Values:
    """The fields of a config, each as `typed` gives it; TypeError with name and value of the first that is not one."""
    found = {}
    for name, value in fields.items():
        try:
            found[name] = typed(name, value, of)
        except TypeError as error:
            raise TypeError(f"{name}={value!r}: {error}") from None
    return found


@functools.cache
def _kinds(of: type, field: str) -> tuple[type, ...]:
    """The plain types that a field has; none of a field that is made of several values."""
    hint = get_type_hints(of)[field]
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return kinds if all(kind in _CALLED or kind is NoneType for kind in kinds) else ()


@dataclass(frozen=True)
class Field(Group):
    """One key that is one field. `default`: what the family means where the key is missing (or null, unless null is
    a value of its own: `may_be_none`)."""

    key: str
    field: str
    default: Any = REQUIRED
    read_as: Callable[[Any], Any] = lambda value: value
    write_as: Callable[[Any], Any] = lambda value: value
    may_be_none: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.key,)

    def read(self, given: Reader) -> Values:
        value = given.take(self.key, self.default)
        if value is None and not self.may_be_none:
            value = self.default
        if value is None:
            return {self.field: None}
        try:
            return {self.field: typed(self.field, self.read_as(value))}
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise given.error(self.key, f"not a value that can be read ({error}).") from None

    def write(self, model: ModelConfig) -> Values:
        value = getattr(model, self.field)
        return {self.key: None if value is None else self.write_as(value)}


@dataclass(frozen=True)
class Must(Group):
    """A key that changes what is computed and of which only some values can be honoured; missing or null is the first.

    `otherwise` says what another value would mean.
    """

    key: str
    values: tuple[Any, ...]
    otherwise: str

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.key,)

    def read(self, given: Reader) -> Values:
        value = given.take(self.key, None)
        if value is not None and value not in self.values:
            raise given.error(self.key, f"{self.otherwise} Only {' or '.join(map(repr, self.values))} can be read.")
        return {}

    def write(self, model: ModelConfig) -> Values:
        return {self.key: self.values[0]}


@dataclass(frozen=True)
class Always(Group):
    """Fields that are the same in every model of the family."""

    fields: tuple[tuple[str, Any], ...]

    def read(self, given: Reader) -> Values:
        return dict(self.fields)

    def write(self, model: ModelConfig) -> Values:
        return {}


@dataclass(frozen=True)
class HeadDim(Group):
    """head_dim, which where it is missing is hidden_size / num_attention_heads."""

    default: int | None = None
    keys: tuple[str, ...] = ("head_dim",)

    def read(self, given: Reader) -> Values:
        value = given.take("head_dim", None)
        if value is None and self.default is not None and "head_dim" not in given.values:
            value = self.default
        if value is None:
            embed, heads = given.values.get("hidden_size"), given.values.get("num_attention_heads")
            if not isinstance(embed, int) or not isinstance(heads, int) or heads < 1 or embed % heads:
                raise given.error(
                    "num_attention_heads", f"does not divide hidden_size={embed}, and there is no head_dim."
                )
            value = embed // heads
        return {"head_dim": value}

    def write(self, model: ModelConfig) -> Values:
        return {"head_dim": model.head_dim}


@dataclass(frozen=True)
class KeyHeads(Group):
    """num_key_value_heads, which where it is missing is `default`, or null for num_attention_heads."""

    default: int | None = None
    keys: tuple[str, ...] = ("num_key_value_heads",)

    def read(self, given: Reader) -> Values:
        value = given.take("num_key_value_heads", self.default)
        return {"num_kv_heads": given.take("num_attention_heads") if value is None else value}

    def write(self, model: ModelConfig) -> Values:
        return {"num_key_value_heads": model.num_kv_heads}


@dataclass(frozen=True)
class Both(Group):
    """One key that sets several fields at once (biases of all of a sublayer's matrices)."""

    key: str
    fields: tuple[str, ...]
    default: Any

    @property
    def keys(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.key,)

    def read(self, given: Reader) -> Values:
        value = given.take(self.key, self.default)
        try:
            return {field: typed(field, self.default if value is None else value) for field in self.fields}
        except TypeError as error:
            raise given.error(self.key, f"not a value that can be read ({error}).") from None

    def write(self, model: ModelConfig) -> Values:
        return {self.key: getattr(model, self.fields[0])}
