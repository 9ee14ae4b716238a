"""`Experts`: the section of a layout that says how tokens reach experts which live on other devices.

    dropless   each token reaches all of its experts; buffers are made for the worst case, traffic is what is needed
    capacity   an expert takes at most `capacity_factor` times its even share of each row; the others pass it by

Over which axes the experts are dealt out is the row `expert` of the rules.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshtrain.errors import InputError, known_keys, one_of

DISPATCHES = ("dropless", "capacity")


@dataclass(frozen=True)
class Experts:
    """dispatch: one of DISPATCHES. capacity_factor: of "capacity" alone, where it must be given."""

    dispatch: str = "dropless"
    capacity_factor: float | None = None

    @classmethod
    def parse(cls, value: Any, key: str = "experts") -> "Experts":
        """The section; None is the default. InputError for the first key or value that is wrong."""
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InputError(f"{key}: expected a dict, such as {key}=dict(dispatch='dropless'), not {value!r}.")
        known_keys(key, value, (f.name for f in fields(cls)))
        dispatch, factor = value.get("dispatch", "dropless"), value.get("capacity_factor")
        one_of(f"{key}.dispatch", dispatch, DISPATCHES)
        if dispatch == "dropless" and factor is not None:
            raise InputError(
                f"{key}.capacity_factor: {factor} is set, but {key}.dispatch='dropless' drops nothing."
                f" {key}.capacity_factor=None or {key}.dispatch='capacity' would work."
            )
        number = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < float("inf")
        if dispatch == "capacity" and not number:
            raise InputError(
                f"{key}.capacity_factor: expected a number above 0, not {factor!r}; 1.25 leaves a quarter of room above"
                f" an even load, the number of experts over model.moe.top_k never drops a token."
            )
        return cls(dispatch, None if factor is None else float(factor))

    def capacity(self, length: int, top_k: int, num_experts: int) -> int | None:
        """Tokens of a row of `length` that one expert takes at most; None: all of them."""
        if self.capacity_factor is None:
            return None
        return min(length, max(1, -int(-self.capacity_factor * length * top_k // num_experts)))
