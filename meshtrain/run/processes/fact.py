"""A fact about this process, with where it came from: what the start prints as a table and names in its errors."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """value, and the flag or variable that said so."""

    value: T
    source: str
