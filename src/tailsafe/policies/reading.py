"""Objects of JSON files, read field by field: what is missing or not as it must be is named with its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tailsafe.errors import InputError

T = TypeVar("T")
# The largest that a double holds exactly, and more than anything here is counted to.
LARGEST_WHOLE = 2**53


class Fields:
    """A JSON object whose entries are asked for by type; every complaint names the place. place: where it stands."""

    def __init__(self, data: Any, place: str) -> None:
        if not isinstance(data, dict):
            raise InputError(f"{place} must be an object, is {type(data).__name__}")
        self.data: dict[str, Any] = data
        self.place = place

    def get(self, key: str) -> Any:
        if key not in self.data:
            raise InputError(f"{self.place} lacks {key!r}")
        return self.data[key]

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        return None if self.data.get(key) is None else read(key)

    def text(self, key: str) -> str:
        return cast(str, self._require(key, isinstance(self.get(key), str), "a text"))

    def flag(self, key: str) -> bool:
        return cast(bool, self._require(key, isinstance(self.get(key), bool), "true or false"))

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        return cast(str, self._require(key, self.get(key) in allowed, "one of " + ", ".join(allowed)))

    def number(self, key: str) -> float:
        return float(self._require(key, is_number(self.get(key)), "a finite number"))

    def whole(self, key: str, least: int) -> int:
        value = self.get(key)
        good = isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST_WHOLE
        return int(self._require(key, good, f"a whole number, at least {least}"))

    def integer(self, key: str) -> int:
        value = self.get(key)
        good = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE
        return int(self._require(key, good, "a whole number"))

    def wholes(self, key: str, count: int | None = None, least: float = 0) -> tuple[int, ...]:
        """A list of whole numbers, none below `least`."""
        values = self.get(key)
        good = isinstance(values, list) and all(type(x) is int and x >= least for x in values)
        wanted = f"a list of {count or ''} whole numbers" + (f", at least {least}" if math.isfinite(least) else "")
        return tuple(self._require(key, good and count in (None, len(values)), wanted))

    def numbers(self, key: str, count: int | None = None, *, or_inf: bool = False) -> tuple[float, ...]:
        """A list of numbers; with `or_inf`, null stands for infinity."""
        values = self.get(key)
        good = isinstance(values, list) and all(is_number(x) or (or_inf and x is None) for x in values)
        self._require(key, good and count in (None, len(values)), f"a list of {count or ''} finite numbers")
        return tuple(math.inf if x is None else float(x) for x in values)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.get(key)
        good = isinstance(values, list) and all(isinstance(x, str) for x in values)
        return tuple(self._require(key, good, "a list of texts"))

    def object(self, key: str) -> Fields:
        return Fields(self.get(key), f"{self.place}.{key}")

    def objects(self, key: str) -> list[Fields]:
        values = self._require(key, isinstance(self.get(key), list), "a list")
        return [Fields(value, f"{self.place}.{key}[{i}]") for i, value in enumerate(values)]

    def _require(self, key: str, good: bool, wanted: str) -> Any:
        value = self.get(key)
        if not good:
            shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
            raise InputError(f"{self.place}.{key} must be {' '.join(wanted.split())}, is {shown}")
        return value


def is_number(value: Any) -> bool:
    """Whether a value of a JSON file is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False
